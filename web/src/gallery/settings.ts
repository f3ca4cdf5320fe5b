// The settings of a result, read from the prompt that made it: named ones for people, and every node for those who want it.
import type { ApiNode, ApiPrompt, JobDetails } from "../api/types";
import { type CreateValues, valuesFrom } from "../create/values";
import { type Outputs, readOutputs } from "./outputs";

export interface Setting {
  name: string;
  value: string;
}

export interface NodeLine {
  id: string;
  title: string;
  class_type: string;
  inputs: { name: string; value: string; link: boolean }[];
}

/** What a tile shows and the search looks through; light enough to keep for thousands of jobs. */
export interface Summary {
  id: string;
  /** The prompt text, or what stands for it in graphs without one. */
  title: string;
  prompt: string;
  seed: string;
  model: string;
  size: string;
  workflow: string;
  haystack: string;
  outputs: Outputs;
}

/** A node's input that comes from another node: `["4", 0]`. */
export function isLink(value: unknown): value is [string, number] {
  return Array.isArray(value) && value.length === 2 && (typeof value[0] === "string" || typeof value[0] === "number") && typeof value[1] === "number";
}

export function titleOf(node: ApiNode): string {
  return node._meta?.title || node.class_type;
}

/** A value as text for people; numbers without the dust of binary fractions. */
export function shown(value: unknown): string {
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(7)));
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value === null || value === undefined) return "none";
  return JSON.stringify(value);
}

/** Nodes in reading order of their ids: 2 before 10. */
export function nodeLines(prompt: ApiPrompt): NodeLine[] {
  return entries(prompt).map(([id, node]) => ({
    id,
    title: titleOf(node),
    class_type: node.class_type,
    inputs: Object.entries(node.inputs).map(([name, value]) => ({ name, link: isLink(value), value: isLink(value) ? `from node ${value[0]}` : shown(value) })),
  }));
}

function entries(prompt: ApiPrompt): [string, ApiNode][] {
  return Object.entries(prompt ?? {})
    .filter(([, node]) => typeof node === "object" && node !== null && typeof node.inputs === "object" && node.inputs !== null)
    .sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
}

const MODEL_FILE = /\.(safetensors|ckpt|pt|pth|gguf|sft|bin)$/i;

function texts(prompt: ApiPrompt): string[] {
  return entries(prompt).flatMap(([, node]) => Object.values(node.inputs).filter((v): v is string => typeof v === "string" && v !== ""));
}

/** The base name of a model file. */
export function modelName(file: string): string {
  return file.replace(/^.*[\\/]/, "").replace(MODEL_FILE, "");
}

/** The model that made it: what Create reads, else the first model file that a node names. */
function modelOf(prompt: ApiPrompt, values: Partial<CreateValues> | null): string {
  if (values?.model) return values.model;
  const all = entries(prompt).flatMap(([, node]) => Object.entries(node.inputs));
  const file = (name: RegExp) => all.find(([key, v]) => name.test(key) && typeof v === "string" && v !== "")?.[1] as string | undefined;
  return file(/^(ckpt|unet)_name$/) ?? texts(prompt).find((t) => MODEL_FILE.test(t)) ?? "";
}

/** Named settings in a fixed order; those a graph does not have are left out. */
export function settingsOf(prompt: ApiPrompt): Setting[] {
  const values = valuesFrom(prompt);
  const out: Setting[] = [];
  const add = (name: string, value: unknown) => {
    if (value !== undefined && value !== null && value !== "") out.push({ name, value: shown(value) });
  };
  add("Prompt", values?.prompt);
  add("Avoid", values?.negative);
  add("Seed", values?.seed ?? seedsOf(prompt)[0]?.value);
  add("Model", modelOf(prompt, values));
  for (const lora of values?.loras ?? []) add(`LoRA ${modelName(lora.name)}`, lora.strength);
  add("Size", sizeOf(values));
  add("Steps", values?.steps);
  add("Guidance", values?.cfg);
  add("Sampler", values?.sampler);
  add("Scheduler", values?.scheduler);
  if (values?.image) {
    add("Start picture", values.image.filename);
    add("How much to change", values.denoise);
  }
  return out;
}

function sizeOf(values: Partial<CreateValues> | null): string {
  return values?.width && values?.height ? `${values.width} × ${values.height}` : "";
}

export interface SeedPlace {
  node: string;
  input: string;
  value: number;
}

/** Every seed a graph holds as a number. */
export function seedsOf(prompt: ApiPrompt): SeedPlace[] {
  return entries(prompt).flatMap(([node, { inputs }]) =>
    ["seed", "noise_seed"].flatMap((input) => (typeof inputs[input] === "number" ? [{ node, input, value: inputs[input] as number }] : [])),
  );
}

/** Whether a whole number in the graph is larger than a browser can repeat exactly. */
export function hasHugeNumber(prompt: ApiPrompt): boolean {
  return entries(prompt).some(([, node]) => Object.values(node.inputs).some((v) => typeof v === "number" && Number.isInteger(v) && !Number.isSafeInteger(v)));
}

/** A picture made by Create has its words as title; other graphs their longest text, or what they do. */
export function summarise(details: Pick<JobDetails, "id" | "outputs" | "workflow">): Summary {
  const prompt = details.workflow?.prompt ?? {};
  const values = valuesFrom(prompt);
  const outputs = readOutputs(details.outputs);
  const words = texts(prompt).filter((t) => /\s/.test(t.trim()) && !MODEL_FILE.test(t));
  const longest = words.reduce((a, b) => (b.length > a.length ? b : a), "");
  const nodes = entries(prompt);
  const classes = [...new Set(nodes.map(([, node]) => titleOf(node)))];
  const title = (values?.prompt || longest).trim() || (classes.length > 0 ? classes.slice(0, 3).join(" → ") : "No prompt");
  const model = modelOf(prompt, values);
  const seed = values?.seed ?? seedsOf(prompt)[0]?.value;
  return {
    id: details.id,
    title,
    prompt: values?.prompt ?? longest,
    seed: seed === undefined ? "" : String(seed),
    model,
    size: sizeOf(values),
    workflow: workflowLabel(details, values !== null),
    haystack: [...texts(prompt), title, ...outputs.files.map((f) => f.file.filename), seed ?? "", details.id].join("\n").toLowerCase(),
    outputs,
  };
}

/** How the graph is called: its own name where it has one. */
function workflowLabel(details: Pick<JobDetails, "workflow">, plain: boolean): string {
  const extra = details.workflow?.extra_data ?? {};
  const named = [extra.fresco_app, extra.extra_pnginfo?.workflow?.name].find((n) => typeof n === "string" && n !== "");
  if (typeof named === "string") return named;
  const count = Object.keys(details.workflow?.prompt ?? {}).length;
  const nodes = `${count} ${count === 1 ? "node" : "nodes"}`;
  return plain ? `Text to picture, ${nodes}` : `Custom workflow, ${nodes}`;
}

/** "under 0.1 s", "0.4 s", "12 s", "3 min 5 s". */
export function duration(ms: number | undefined): string {
  if (ms === undefined || !(ms >= 0)) return "";
  if (ms < 50) return "under 0.1 s";
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
