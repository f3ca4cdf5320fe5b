// Reads an API prompt as a graph: which inputs are links, who uses what, and which nodes an output needs.
import type { ApiPrompt, ObjectInfo } from "../api/types";

export interface Link {
  node: string;
  slot: number;
}

export interface Use {
  node: string;
  input: string;
  slot: number;
}

/** The link an input value stands for, or null for a plain value. */
export function linkOf(value: unknown): Link | null {
  if (!Array.isArray(value) || value.length !== 2) return null;
  const [node, slot] = value as [unknown, unknown];
  if ((typeof node !== "string" && typeof node !== "number") || typeof slot !== "number") return null;
  return { node: String(node), slot };
}

/** All links into a node, in the order of its inputs. */
export function linksInto(prompt: ApiPrompt, id: string): { input: string; link: Link }[] {
  const found: { input: string; link: Link }[] = [];
  for (const [input, value] of Object.entries(prompt[id]?.inputs ?? {})) {
    const link = linkOf(value);
    if (link && prompt[link.node]) found.push({ input, link });
  }
  return found;
}

/** For every node, the inputs that its outputs feed. */
export function usesOf(prompt: ApiPrompt): Map<string, Use[]> {
  const uses = new Map<string, Use[]>();
  for (const id of Object.keys(prompt)) {
    for (const { input, link } of linksInto(prompt, id)) {
      const list = uses.get(link.node);
      const use = { node: id, input, slot: link.slot };
      if (list) list.push(use);
      else uses.set(link.node, [use]);
    }
  }
  return uses;
}

/** The nodes that run: those an output node needs. All of them where no output node is known. */
export function runningNodes(prompt: ApiPrompt, info: ObjectInfo): Set<string> {
  const ids = Object.keys(prompt);
  const outputs = ids.filter((id) => {
    const known = info[prompt[id]!.class_type];
    return !known || known.output_node;
  });
  if (!outputs.length) return new Set(ids);
  const seen = new Set(outputs);
  const open = [...outputs];
  for (let id = open.pop(); id !== undefined; id = open.pop()) {
    for (const { link } of linksInto(prompt, id)) {
      if (seen.has(link.node)) continue;
      seen.add(link.node);
      open.push(link.node);
    }
  }
  return seen;
}

/** Nodes in a lasting order: by the numbers in their ids, so that the file's own order does not matter. */
export function orderedIds(prompt: ApiPrompt): string[] {
  return Object.keys(prompt).sort((a, b) => {
    const left = a.split(":");
    const right = b.split(":");
    for (let i = 0; i < Math.max(left.length, right.length); i += 1) {
      const x = left[i] ?? "";
      const y = right[i] ?? "";
      if (x === y) continue;
      const difference = Number(x) - Number(y);
      if (Number.isFinite(difference) && x !== "" && y !== "") return difference;
      return x < y ? -1 : 1;
    }
    return 0;
  });
}

/** The title a person knows the node by. */
export function titleOf(prompt: ApiPrompt, info: ObjectInfo, id: string): string {
  const node = prompt[id];
  if (!node) return id;
  return node._meta?.title?.trim() || info[node.class_type]?.display_name || node.class_type;
}

/** The title somebody gave the node, or "" where it still has its ordinary one. */
export function ownTitle(prompt: ApiPrompt, info: ObjectInfo, id: string): string {
  const node = prompt[id];
  const title = node?._meta?.title?.trim() ?? "";
  if (!node || !title || title === node.class_type) return "";
  const known = info[node.class_type];
  if (known && (title === known.display_name || title === known.name)) return "";
  // Well-known titles of plain nodes, also where the display name was worded differently by another server.
  return /^(CLIP Text Encode \(Prompt\)|Load Image|Load Checkpoint|Load Diffusion Model|Load LoRA|Load VAE|Load CLIP|KSampler|Empty Latent Image)$/i.test(title)
    ? ""
    : title;
}
