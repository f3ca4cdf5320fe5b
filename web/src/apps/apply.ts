// Puts a form's values back into the workflow, and exchanges models that are not there.
import type { ApiPrompt, Inspection, ObjectInfo, UiWorkflow } from "../api/types";
import { safeHref } from "../ui/markdown";
import { partsOf, type Values } from "./fields";
import { linkOf, titleOf } from "./graph";
import { choosesModel, specOf, uploadOf } from "./specs";

/** The workflow with these values; linked inputs and unknown nodes are left alone. */
export function applyValues(prompt: ApiPrompt, values: Values): ApiPrompt {
  const next: ApiPrompt = { ...prompt };
  for (const [key, value] of Object.entries(values)) {
    const { node, input } = partsOf(key);
    const old = next[node];
    if (value === undefined || !old || !(input in old.inputs) || linkOf(old.inputs[input]) || Object.is(old.inputs[input], value)) continue;
    next[node] = { ...old, inputs: { ...old.inputs, [input]: value } };
  }
  return next;
}

type Missing = Inspection["missing"];
export type MissingModel = Missing["models"][number];

export interface MissingGroup {
  wanted: string;
  choices: string[];
  /** Where it is used, as "NODE/INPUT". */
  keys: string[];
  titles: string[];
  /** The folder a file of that name belongs in, where it is known. */
  folder: string;
  /** Where the workflow says it can be had. */
  url?: string;
}

/** Which folder below the models folder the list of an input shows. */
const folders: Record<string, string> = {
  ckpt_name: "checkpoints",
  unet_name: "diffusion_models",
  lora_name: "loras",
  vae_name: "vae",
  control_net_name: "controlnet",
  style_model_name: "style_models",
  gligen_name: "gligen",
  audio_encoder_name: "audio_encoders",
  hypernetwork_name: "hypernetworks",
};

export function folderOf(classType: string, input: string): string {
  if (/^clip_name\d*$/.test(input)) return /Vision/.test(classType) ? "clip_vision" : "text_encoders";
  if (input === "model_name") return /Upscale/.test(classType) ? "upscale_models" : "";
  return folders[input] ?? "";
}

const baseName = (path: string): string => path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1).toLowerCase();

/** Where a workflow says that its models can be had, by the name of the file. */
export function sourcesOf(workflow: UiWorkflow | null): Map<string, string> {
  const found = new Map<string, string>();
  const take = (list: unknown) => {
    for (const entry of Array.isArray(list) ? (list as unknown[]) : []) {
      const { name, url } = (entry ?? {}) as { name?: unknown; url?: unknown };
      const href = typeof url === "string" && /^https?:/i.test(url) ? safeHref(url) : null;
      if (typeof name === "string" && href) found.set(baseName(name), href);
    }
  };
  take(workflow?.models);
  for (const graph of [workflow, ...(workflow?.definitions?.subgraphs ?? [])]) for (const node of graph?.nodes ?? []) take(node?.properties?.models);
  return found;
}

/** Missing models by wanted name: one choice serves all nodes that ask for the same file. */
export function missingGroups(models: MissingModel[], prompt: ApiPrompt, info: ObjectInfo, sources: Map<string, string> = new Map()): MissingGroup[] {
  const groups = new Map<string, MissingGroup>();
  for (const model of models) {
    // Two lists with different files are two questions, even for one name.
    const mark = JSON.stringify([model.wanted, [...model.choices].sort()]);
    const key = `${model.node_id}/${model.input}`;
    const title = titleOf(prompt, info, model.node_id);
    const group = groups.get(mark);
    if (!group)
      groups.set(mark, {
        wanted: model.wanted,
        choices: model.choices,
        keys: [key],
        titles: [title],
        folder: folderOf(model.class_type, model.input),
        url: sources.get(baseName(model.wanted)),
      });
    else {
      group.keys.push(key);
      if (!group.titles.includes(title)) group.titles.push(title);
    }
  }
  // What can be answered here comes first.
  return [...groups.values()].sort((a, b) => Number(b.choices.length > 0) - Number(a.choices.length > 0));
}

/** The values that put `choice` wherever the group's model was wanted. */
export function substitute(group: MissingGroup, choice: string): Values {
  return Object.fromEntries(group.keys.map((key) => [key, choice]));
}

/** What this machine lacks for a workflow, judged by /object_info alone. */
export function lacks(prompt: ApiPrompt, info: ObjectInfo): Missing {
  const missing: Missing = { nodes: [], models: [], files: [] };
  for (const [id, node] of Object.entries(prompt)) {
    if (!info[node.class_type]) {
      missing.nodes.push({ id, class_type: node.class_type, title: titleOf(prompt, info, id) });
      continue;
    }
    for (const [input, value] of Object.entries(node.inputs)) {
      if (typeof value !== "string") continue;
      const spec = specOf(info, node.class_type, input, node.inputs);
      if (spec?.type !== "COMBO" || !spec.choices || spec.choices.includes(value)) continue;
      if (uploadOf(spec)) {
        // "name [output]" and names in sub-folders are not in the list, yet the server finds them.
        if (!/ \[(input|output|temp)\]$/.test(value) && !value.includes("/")) missing.files.push({ node_id: id, input, wanted: value });
      } else if (choosesModel(input, spec, value) && !spec.options.remote) {
        missing.models.push({ node_id: id, class_type: node.class_type, input, wanted: value, choices: likeliest(value, spec.choices) });
      }
    }
  }
  return missing;
}

/** Whether a file is plausibly the wanted one under another name: half of the neighbouring letters are the same. The server
 *  judges alike (`missing.rs`). */
export function plausible(wanted: string, choice: string): boolean {
  const pairs = (name: string): string[] => {
    const base = name
      .slice(Math.max(name.lastIndexOf("/"), name.lastIndexOf("\\")) + 1)
      .replace(/\.\w+$/, "")
      .toLowerCase();
    const letters = [...base.replace(/[^\p{L}\p{N}]/gu, "")];
    return letters.slice(1).map((c, i) => `${letters[i]}${c}`);
  };
  const [a, b] = [pairs(wanted), pairs(choice)];
  const left = [...b];
  const both = a.filter((p) => {
    const at = left.indexOf(p);
    if (at >= 0) left.splice(at, 1);
    return at >= 0;
  }).length;
  return a.length + b.length > 0 && (2 * both) / (a.length + b.length) >= 0.5;
}

/** Choices sorted by how much of the wanted name they share. */
export function likeliest(wanted: string, choices: string[]): string[] {
  const want = pieces(wanted);
  const score = (choice: string) => {
    const have = pieces(choice);
    const shared = [...have].filter((piece) => want.has(piece)).length;
    return shared / Math.max(1, want.size + have.size - shared);
  };
  return choices
    .map((choice, index) => ({ choice, index, score: score(choice) }))
    .sort((a, b) => b.score - a.score || a.index - b.index)
    .map((x) => x.choice);
}

function pieces(name: string): Set<string> {
  const base = name.slice(Math.max(name.lastIndexOf("/"), name.lastIndexOf("\\")) + 1).replace(/\.\w+$/, "");
  return new Set(
    base
      .toLowerCase()
      .split(/[^a-z0-9]+|(?<=[a-z])(?=\d)/)
      .filter(Boolean),
  );
}
