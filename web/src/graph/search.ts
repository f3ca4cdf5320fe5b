// Finds node classes by name, title and category, best first.
import type { ObjectInfo } from "../api/types";
import { firstInput, firstOutput } from "./compat";
import type { ClassSpec } from "./schema";
import { classSpec } from "./schema";

export interface Wanted {
  from?: string; // type of an output that must be accepted
  to?: string; // type of an input that must be fed
}

const EDITOR_NODES: { name: string; title: string; category: string }[] = [
  { name: "Reroute", title: "Reroute", category: "utils" },
  { name: "PrimitiveNode", title: "Primitive", category: "utils" },
  { name: "Note", title: "Note", category: "utils" },
  { name: "MarkdownNote", title: "Markdown note", category: "utils" },
];

/** Offered first where nothing was typed yet. */
const COMMON = [
  "LoadImage",
  "KSampler",
  "CLIPTextEncode",
  "CheckpointLoaderSimple",
  "VAEDecode",
  "VAEEncode",
  "PreviewImage",
  "SaveImage",
  "EmptyLatentImage",
  "LoraLoader",
  "VAELoader",
  "UpscaleModelLoader",
  "ImageScale",
  "LatentUpscale",
];

export interface Found {
  name: string;
  title: string;
  category: string;
  description: string;
}

function words(text: string): string {
  return text
    .replace(/([a-z0-9])([A-Z])/g, "$1 $2")
    .replace(/[_\-/.]+/g, " ")
    .toLowerCase();
}

/** How well a term matches; 0 is not at all. */
function score(term: string, entry: Found): number {
  const title = entry.title.toLowerCase();
  const name = entry.name.toLowerCase();
  if (title === term || name === term) return 100;
  if (title.startsWith(term) || name.startsWith(term)) return 80 - Math.min(20, title.length / 4);
  const spread = `${words(entry.title)} ${words(entry.name)}`;
  if (spread.split(" ").some((w) => w.startsWith(term))) return 55 - Math.min(10, title.length / 8);
  if (title.includes(term) || name.includes(term)) return 40;
  if (entry.category.toLowerCase().includes(term)) return 20;
  if (entry.description.toLowerCase().includes(term)) return 8;
  return subsequence(term, name) && term.length > 2 ? 5 : 0;
}

function subsequence(term: string, text: string): boolean {
  let at = 0;
  for (const c of text) if (c === term[at]) at += 1;
  return at === term.length;
}

function accepts(spec: ClassSpec | undefined, name: string, wanted: Wanted): boolean {
  if (wanted.from === undefined && wanted.to === undefined) return true;
  if (name === "Reroute") return true;
  if (name === "PrimitiveNode") return wanted.to !== undefined && ["INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"].includes(wanted.to);
  if (!spec) return false;
  if (wanted.from !== undefined) return firstInput(spec, wanted.from) !== null;
  return firstOutput(spec, wanted.to ?? "*") >= 0;
}

/** A class that takes the very type is offered before one that takes anything. */
function closeness(spec: ClassSpec | undefined, wanted: Wanted): number {
  if (!spec) return 0;
  if (wanted.from !== undefined) {
    const from = wanted.from.toLowerCase();
    return spec.inputs.some((i) => (i.role === "socket" || i.role === "forced") && i.type.toLowerCase() === from) ? 3 : 0;
  }
  if (wanted.to !== undefined) return spec.outputs[0]?.type.toLowerCase() === wanted.to.toLowerCase() ? 3 : 0;
  return 0;
}

export function searchNodes(info: ObjectInfo, query: string, wanted: Wanted = {}, limit = 60): Found[] {
  const terms = query.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found: { entry: Found; points: number }[] = [];
  const consider = (entry: Found, spec: ClassSpec | undefined) => {
    if (!accepts(spec, entry.name, wanted)) return;
    const whole = terms.length > 1 ? score(terms.join(" "), entry) : 0;
    const each = terms.map((t) => score(t, entry));
    if (whole === 0 && each.some((s) => s === 0)) return;
    let points = Math.max(whole, each.reduce((a, b) => a + b, 0) / Math.max(1, terms.length)) + closeness(spec, wanted);
    if (terms.length === 0 && COMMON.includes(entry.name)) points += 2;
    if (spec?.deprecated) points -= 30;
    if (spec?.experimental) points -= 2;
    found.push({ entry, points });
  };
  for (const name of Object.keys(info)) {
    const spec = classSpec(info, name);
    if (spec) consider({ name, title: spec.title, category: spec.category, description: spec.description }, spec);
  }
  for (const entry of EDITOR_NODES) consider({ ...entry, description: "" }, undefined);
  found.sort((a, b) => b.points - a.points || a.entry.title.localeCompare(b.entry.title, "en"));
  return found.slice(0, limit).map((f) => f.entry);
}
