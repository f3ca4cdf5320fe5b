// Turns a workflow into a list of fields: what a person can change, sorted by what people change most.
import type { ApiPrompt, ObjectInfo } from "../api/types";
import { linkOf, orderedIds, ownTitle, runningNodes, titleOf, type Use, usesOf } from "./graph";
import { promptRoles, type Role } from "./roles";
import { choosesModel, inputOrder, type Spec, specOf, uploadOf, wordsFor } from "./specs";

export type Group = "prompt" | "image" | "size" | "seed" | "model" | "rest";
export const groups: readonly Group[] = ["prompt", "image", "size", "seed", "model", "rest"];

export type Kind = "text" | "line" | "number" | "choice" | "switch" | "file" | "seed" | "size" | "color";

export interface Field {
  /** "NODE/INPUT" of its first input. */
  key: string;
  node: string;
  /** One input; width and height for a size. */
  inputs: string[];
  classType: string;
  nodeTitle: string;
  group: Group;
  kind: Kind;
  role?: Role;
  label: string;
  hint: string;
  choices?: string[];
  min?: number;
  max?: number;
  step?: number;
  whole?: boolean;
  upload?: "image" | "video" | "audio" | "file";
  /** Whether a choice is a model file. */
  model?: boolean;
  /** Order inside its group, before the order of the nodes. */
  rank: number;
}

/** Values by "NODE/INPUT". */
export type Values = Record<string, unknown>;

export const keyOf = (node: string, input: string): string => `${node}/${input}`;

export function partsOf(key: string): { node: string; input: string } {
  const at = key.indexOf("/");
  return { node: key.slice(0, at), input: key.slice(at + 1) };
}

const modelRanks: [RegExp, number][] = [
  [/^ckpt/i, 0],
  [/^unet|^model_name|^diffusion/i, 1],
  [/lora/i, 2],
  [/control/i, 4],
  [/clip_name|text_encoder/i, 5],
  [/vae/i, 6],
];

/** The fields of a workflow, in the order a form shows them. */
export function fieldsOf(prompt: ApiPrompt, info: ObjectInfo): Field[] {
  const roles = promptRoles(prompt, info);
  const uses = usesOf(prompt);
  const running = runningNodes(prompt, info);
  const order = new Map([...roles.keys()].map((id, index) => [id, index]));
  const fields: Field[] = [];
  for (const id of orderedIds(prompt)) {
    if (!running.has(id)) continue;
    const start = fields.length;
    for (const input of inputOrder(info, prompt, id)) {
      const field = fieldOf(prompt, info, id, input, roles.get(id), uses.get(id) ?? []);
      if (field) fields.push(field);
    }
    pairSizes(fields, start, prompt, info, id);
  }
  const place = new Map(fields.map((field, index) => [field.key, index]));
  // Prompts come in the order the samplers use them, the rest in the order of the nodes.
  const nodePlace = (field: Field) => (field.group === "prompt" ? (order.get(field.node) ?? 1000) : 0);
  fields.sort(
    (a, b) => groups.indexOf(a.group) - groups.indexOf(b.group) || a.rank - b.rank || nodePlace(a) - nodePlace(b) || place.get(a.key)! - place.get(b.key)!,
  );
  nameApart(fields, prompt, info);
  return fields;
}

function fieldOf(prompt: ApiPrompt, info: ObjectInfo, id: string, input: string, role: Role | undefined, uses: Use[]): Field | null {
  const node = prompt[id]!;
  const value = node.inputs[input];
  if (linkOf(value) || value === null || (typeof value === "object" && value !== null)) return null;
  const known = info[node.class_type];
  let spec = specOf(info, node.class_type, input, node.inputs);
  // A value that the class does not know is decoration of some front-end: changing it would do nothing.
  if (known && !spec) return null;
  if (spec?.options.forceInput) return null;

  let name = input;
  const end = primitiveEnd(prompt, info, node.class_type, uses);
  if (end && (input === "value" || input === "string")) {
    name = end.input;
    if (end.spec) spec = { ...end.spec, options: { ...end.spec.options, ...pickLimits(spec) } };
  }

  const type = spec?.type ?? guessType(value);
  const base: Field = {
    key: keyOf(id, input),
    node: id,
    inputs: [input],
    classType: node.class_type,
    nodeTitle: titleOf(prompt, info, id),
    group: "rest",
    kind: "line",
    label: wordsFor(name),
    hint: typeof spec?.options.tooltip === "string" ? spec.options.tooltip : "",
    rank: 10,
  };
  switch (type) {
    case "COMBO":
      return choiceField(base, name, spec, value, uses);
    case "INT":
    case "FLOAT":
      return numberField(base, name, type, spec, node);
    case "BOOLEAN":
      return { ...base, kind: "switch" };
    case "STRING":
      return textField(base, name, spec, value, role);
    case "COLOR":
      return { ...base, kind: "color" };
    default:
      return spec ? null : base;
  }
}

/** Where a node only holds one value, the input it is for. */
function primitiveEnd(prompt: ApiPrompt, info: ObjectInfo, classType: string, uses: Use[]): { input: string; spec: Spec | null } | null {
  if (!/^(Primitive|Int|Float|String|Text|Constant)/i.test(classType) && !/(Constant|Literal|Primitive)/i.test(classType)) return null;
  const first = uses[0];
  if (!first || uses.some((use) => use.input !== first.input)) return null;
  const end = prompt[first.node]!;
  return { input: first.input, spec: specOf(info, end.class_type, first.input, end.inputs) };
}

function pickLimits(spec: Spec | null): Record<string, unknown> {
  // The holder's own limits are as wide as numbers go, so only its wording is kept.
  return spec?.options.tooltip ? { tooltip: spec.options.tooltip } : {};
}

function guessType(value: unknown): string {
  if (typeof value === "boolean") return "BOOLEAN";
  if (typeof value === "number") return Number.isInteger(value) ? "INT" : "FLOAT";
  return "STRING";
}

function choiceField(base: Field, name: string, spec: Spec | null, value: unknown, uses: Use[]): Field | null {
  // A list that changes which inputs the node has cannot be changed without the graph.
  if (spec?.options.multiselect || spec?.options.dynamic) return null;
  const upload = uploadOf(spec);
  const choices = spec?.choices ?? [];
  if (upload) {
    const maskOnly = upload === "image" && (/Mask$/.test(base.classType) || (uses.length > 0 && uses.every((use) => use.slot === 1)));
    const label = { image: maskOnly ? "Mask" : "Picture", video: "Video", audio: "Sound", file: "File" }[upload];
    return { ...base, group: "image", kind: "file", upload, choices, label, rank: maskOnly ? 1 : 0 };
  }
  if (choosesModel(name, spec, value)) {
    const rank = modelRanks.find(([pattern]) => pattern.test(name))?.[1] ?? 3;
    const label = base.classType.startsWith("CLIPVision") ? "Vision model" : base.label;
    return { ...base, group: "model", kind: "choice", choices, model: true, label, rank };
  }
  if (/^model$/i.test(name)) return { ...base, group: "model", kind: "choice", choices, rank: 1 };
  if (/^(aspect_ratio|size|resolution)$/i.test(name)) return { ...base, group: "size", kind: "choice", choices, rank: 1 };
  return { ...base, kind: "choice", choices };
}

function finite(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

function numberField(base: Field, name: string, type: string, spec: Spec | null, node: { class_type: string; inputs: Record<string, unknown> }): Field {
  const whole = type === "INT";
  const field: Field = {
    ...base,
    kind: "number",
    whole,
    min: finite(spec?.options.min),
    max: finite(spec?.options.max),
    step: finite(spec?.options.step) ?? (whole ? 1 : (finite(spec?.options.round) ?? 0.01)),
  };
  if (whole && spec?.options.display === "color") return { ...field, kind: "color" };
  if (whole && (/(^|_)seed$/i.test(name) || (spec?.options.control_after_generate && /seed/i.test(base.label)))) {
    // A sampler that adds no noise does not look at its seed.
    const unused = node.inputs.add_noise === "disable";
    return { ...field, kind: "seed", group: unused ? "rest" : "seed" };
  }
  if (/^(width|height)$/i.test(name) && whole) return { ...field, group: "size", rank: name.toLowerCase() === "width" ? 0 : 0.5 };
  if (/^(batch_size|length|num_frames|frames)$/i.test(name) && whole) return { ...field, group: "size", rank: 2 };
  if (/^(duration|seconds)$/i.test(name)) return { ...field, group: "size", rank: 2 };
  if (/lora/i.test(node.class_type) && name === "strength_model") return { ...field, group: "model", rank: 2 };
  return field;
}

/** Names that speak of a prompt even where no link shows it. */
const plainName = /^(text|prompt\w*|positive\w*|negative\w*|tags|lyrics|caption|description|text_[lg])$/i;
const promptName = /^(text\w*|prompt\w*|positive\w*|negative\w*|tags|lyrics|caption|description|clip_[lg]|t5xxl|string\w*|value|llama|qwen\w*)$/i;

function textField(base: Field, name: string, spec: Spec | null, value: unknown, role: Role | undefined): Field {
  const text = typeof value === "string" ? value : String(value ?? "");
  const several = spec ? Boolean(spec.options.multiline || spec.options.dynamicPrompts) : text.length > 60 || text.includes("\n");
  const negative = /negative/i.test(name);
  const asks = role ? several || promptName.test(name) : several && (plainName.test(name) || /TextEncode|Prompt/i.test(base.classType));
  if (!asks || /^(system_prompt|delimiter|prefix|suffix|filename\w*)$/i.test(name)) return { ...base, kind: several ? "text" : "line" };
  const side: Role | undefined = negative ? "negative" : role;
  const plain = /^(text|prompt|string|value|positive\w*|negative\w*|positive_prompt|negative_prompt)$/i.test(name);
  const label = side === "negative" ? "Avoid" : "Prompt";
  const field: Field = {
    ...base,
    kind: "text",
    group: "prompt",
    label: plain ? label : `${label}: ${wordsFor(name).toLowerCase()}`,
    rank: side === "negative" ? 1 : side === "positive" ? 0 : 0.5,
  };
  if (side) field.role = side;
  return field;
}

/** Joins width and height of a node into one field, and folds sizes that are not the picture's. */
function pairSizes(fields: Field[], start: number, prompt: ApiPrompt, info: ObjectInfo, id: string): void {
  const sized = fields.slice(start).filter((field) => field.group === "size" && field.kind === "number");
  if (!sized.length) return;
  const node = prompt[id]!;
  const outputs = (info[node.class_type]?.output ?? []) as unknown[];
  const known = Boolean(info[node.class_type]);
  const holder = Object.keys(node.inputs).length === 1;
  const about =
    !known || holder || outputs.some((type) => ["LATENT", "IMAGE", "VIDEO", "AUDIO", "NOISE"].includes(String(type)) || String(type).startsWith("COMFY_"));
  // An area, a crop or a size hint for the words is not the size of the picture.
  const placed = "x" in node.inputs || "y" in node.inputs || "crop_w" in node.inputs;
  if (!about || placed) for (const field of sized) Object.assign(field, { group: "rest", rank: 10 });
  const width = sized.find((field) => /width$/i.test(field.inputs[0]!) && field.inputs.length === 1);
  const height = sized.find((field) => /height$/i.test(field.inputs[0]!) && field.inputs.length === 1);
  if (!width || !height) return;
  Object.assign(width, { kind: "size", label: "Size", inputs: [width.inputs[0], height.inputs[0]] });
  fields.splice(fields.indexOf(height), 1);
}

/** Gives fields with equal labels different ones: by the node's own title where it has one, else by number. */
function nameApart(fields: Field[], prompt: ApiPrompt, info: ObjectInfo): void {
  const byLabel = new Map<string, Field[]>();
  for (const field of fields) {
    if (field.group === "rest") continue;
    byLabel.set(field.label, [...(byLabel.get(field.label) ?? []), field]);
  }
  for (const [label, same] of byLabel) {
    if (same.length < 2) continue;
    const titles = same.map((field) => ownTitle(prompt, info, field.node));
    const apart = titles.every(Boolean) && new Set(titles).size === titles.length;
    same.forEach((field, index) => {
      if (apart) field.label = field.group === "prompt" || field.group === "image" ? titles[index]! : `${label} (${titles[index]})`;
      else if (index > 0) field.label = `${label} ${index + 1}`;
    });
  }
}

export interface NodeFields {
  node: string;
  title: string;
  classType: string;
  fields: Field[];
}

/** Fields under the title of their node: samplers first, what saves the result last. */
export function byNode(fields: Field[], info: ObjectInfo): NodeFields[] {
  const nodes = new Map<string, NodeFields>();
  for (const field of fields) {
    const entry = nodes.get(field.node);
    if (entry) entry.fields.push(field);
    else nodes.set(field.node, { node: field.node, title: field.nodeTitle, classType: field.classType, fields: [field] });
  }
  const list = [...nodes.values()];
  const rank = (entry: NodeFields) => {
    if (info[entry.classType]?.output_node) return 3;
    if (entry.fields.some((f) => /^(steps|cfg|denoise|guidance|sampler_name|scheduler)$/.test(f.inputs[0]!))) return 0;
    return 1;
  };
  list.sort((a, b) => rank(a) - rank(b));
  const counts = new Map<string, number>();
  for (const entry of list) {
    const count = (counts.get(entry.title) ?? 0) + 1;
    counts.set(entry.title, count);
    if (count > 1) entry.title = `${entry.title} ${count}`;
  }
  return list;
}

/** The values a workflow comes with. */
export function valuesOf(prompt: ApiPrompt, fields: Field[]): Values {
  const values: Values = {};
  for (const field of fields) for (const input of field.inputs) values[keyOf(field.node, input)] = prompt[field.node]?.inputs[input];
  return values;
}
