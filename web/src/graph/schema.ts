// What a node class asks for, read from /object_info: which inputs are sockets, which are widgets, and in what order.
import type { ObjectInfo } from "../api/types";
import { typeText } from "./format";

export type WidgetKind = "int" | "float" | "text" | "multiline" | "bool" | "combo" | "other";
export type Role = "socket" | "forced" | "widget" | "dynamic" | "button" | "display" | "autogrow";

export interface InputSpec {
  name: string;
  type: string;
  role: Role;
  kind: WidgetKind;
  options: Record<string, unknown>;
  choices: unknown[];
  fallback: unknown; // value where the file stores none
  controls: 0 | 1 | 2; // elements stored after the value that say how it changes between runs
  optional: boolean;
  branches: { key: unknown; inputs: InputSpec[] }[]; // of dynamic combos
}

export interface OutputSpec {
  name: string;
  type: string;
  list: boolean;
}

export interface ClassSpec {
  name: string;
  title: string;
  category: string;
  description: string;
  inputs: InputSpec[];
  outputs: OutputSpec[];
  output_node: boolean;
  deprecated: boolean;
  experimental: boolean;
}

const KINDS: Record<string, WidgetKind> = {
  INT: "int",
  FLOAT: "float",
  BOOLEAN: "bool",
  STRING: "text",
  COMBO: "combo",
  MARKDOWN: "multiline",
  TEXTAREA: "multiline",
  COMFY_DYNAMICCOMBO_V3: "combo",
};

const OTHER_WIDGETS = new Set([
  "AUDIOUPLOAD",
  "AUDIO_RECORD",
  "AUDIO_UI",
  "BOUNDING_BOX",
  "CHART",
  "COLOR",
  "CURVE",
  "FILEUPLOAD",
  "GALLERIA",
  "IMAGECOMPARE",
  "IMAGECROP",
  "IMAGEUPLOAD",
  "LOAD_3D",
  "LOAD_3D_ANIMATION",
  "MULTISELECT",
  "PAINTER",
  "PREVIEW_3D",
  "SELECTBUTTON",
  "TREESELECT",
  "WEBCAM",
]);

const MAX_NESTING = 8;
const truthy = (v: unknown): boolean => Boolean(v);
const record = (v: unknown): Record<string, unknown> => (v && typeof v === "object" && !Array.isArray(v) ? (v as Record<string, unknown>) : {});

function parseInput(name: string, spec: unknown, optional: boolean, depth: number): InputSpec {
  const [rawType, rawOptions] = Array.isArray(spec) ? [spec[0], spec[1]] : [spec, undefined];
  const options = record(rawOptions);
  const type = typeText(rawType);
  const widgetType = typeof options.widgetType === "string" ? options.widgetType : type;
  const known = widgetType in KINDS || OTHER_WIDGETS.has(widgetType);
  const dynamic = widgetType === "COMFY_DYNAMICCOMBO_V3";
  const branches = dynamic ? parseBranches(options.options, depth) : [];
  const listed = Array.isArray(rawType) ? rawType : Array.isArray(options.options) ? options.options : [];
  const choices: unknown[] = dynamic ? branches.map((b) => b.key) : listed;
  let role: Role = "socket";
  if (type === "COMFY_AUTOGROW_V3") role = "autogrow";
  else if (known) role = truthy(options.forceInput) ? "forced" : dynamic ? "dynamic" : "widget";
  const kind: WidgetKind = KINDS[widgetType] ?? "other";
  const asked = truthy(options.control_after_generate);
  const seed = name === "seed" || name === "noise_seed";
  let controls: 0 | 1 | 2 = 0;
  if (kind === "int" && (asked || (seed && options.control_after_generate == null))) controls = 1;
  else if (kind === "float" && asked) controls = 1;
  else if (widgetType === "COMBO" && asked) controls = 2;
  return {
    name,
    type,
    role,
    kind: kind === "text" && truthy(options.multiline) ? "multiline" : kind,
    options,
    choices,
    fallback: options.default ?? emptyValue(kind, choices),
    controls,
    optional,
    branches,
  };
}

function emptyValue(kind: WidgetKind, choices: unknown[]): unknown {
  if (kind === "int" || kind === "float") return 0;
  if (kind === "bool") return false;
  if (kind === "combo") return choices[0] ?? null;
  return kind === "other" ? null : "";
}

function parseBranches(raw: unknown, depth: number): InputSpec["branches"] {
  if (!Array.isArray(raw) || depth >= MAX_NESTING) return [];
  return raw.map((entry) => {
    const inputs = record(record(entry).inputs);
    const part = (group: string) => Object.entries(record(inputs[group])).map(([n, s]) => parseInput(n, s, group === "optional", depth + 1));
    return { key: record(entry).key, inputs: [...part("required"), ...part("optional")] };
  });
}

function groupInputs(info: Record<string, unknown>, group: "required" | "optional"): InputSpec[] {
  const entries = record(record(info.input)[group]);
  const order = record(info.input_order)[group];
  const names = new Set<string>((Array.isArray(order) ? order : []).filter((n): n is string => typeof n === "string" && n in entries));
  for (const name of Object.keys(entries)) names.add(name);
  return [...names].map((name) => parseInput(name, entries[name], group === "optional", 0));
}

function extra(name: string, type: string, role: Role): InputSpec {
  return { name, type, role, kind: "other", options: {}, choices: [], fallback: null, controls: 0, optional: true, branches: [] };
}

/** Inputs the ComfyUI editor adds itself at the end of the required ones: they take or leave room in the stored values. */
function editorInputs(name: string, info: Record<string, unknown>): InputSpec[] {
  const specs = Object.values(record(record(info.input).required)).map((s) => record(Array.isArray(s) ? s[1] : undefined));
  const flag = (...keys: string[]) => specs.some((o) => keys.some((k) => truthy(o[k])));
  const added: InputSpec[] = [];
  if (["LoadAudio", "PreviewAudio", "SaveAudio", "SaveAudioMP3", "SaveAudioOpus"].includes(name)) added.push(extra("audioUI", "AUDIO_UI", "display"));
  if (name === "PreviewAny") added.push(extra("preview", "MARKDOWN", "display"), extra("previewMode", "BOOLEAN", "display"));
  if (name === "Preview3D" || name === "SaveGLB") added.push(extra("image", "PREVIEW_3D", "display"));
  if (flag("image_upload", "video_upload", "animated_image_upload")) added.push(extra("upload", "IMAGEUPLOAD", "button"));
  if (flag("audio_upload")) added.push(extra("upload", "AUDIOUPLOAD", "button"));
  return added;
}

function parseClass(name: string, raw: Record<string, unknown>): ClassSpec {
  const outputs = Array.isArray(raw.output) ? raw.output : [];
  const names = Array.isArray(raw.output_name) ? raw.output_name : [];
  const lists = Array.isArray(raw.output_is_list) ? raw.output_is_list : [];
  return {
    name,
    title: typeof raw.display_name === "string" && raw.display_name ? raw.display_name : name,
    category: typeof raw.category === "string" ? raw.category : "",
    description: typeof raw.description === "string" ? raw.description : "",
    inputs: [...groupInputs(raw, "required"), ...editorInputs(name, raw), ...groupInputs(raw, "optional")],
    outputs: outputs.map((type, i) => ({
      type: typeText(type),
      name: typeof names[i] === "string" && names[i] ? (names[i] as string) : typeText(type),
      list: truthy(lists[i]),
    })),
    output_node: truthy(raw.output_node),
    deprecated: truthy(raw.deprecated),
    experimental: truthy(raw.experimental),
  };
}

const cache = new WeakMap<object, ClassSpec>();

/** The class as the editor needs it; undefined where the server does not know it. */
export function classSpec(info: ObjectInfo | null, name: string): ClassSpec | undefined {
  const raw = info && Object.hasOwn(info, name) ? (info[name] as unknown as Record<string, unknown> | undefined) : undefined;
  if (!raw || typeof raw !== "object") return undefined;
  let spec = cache.get(raw);
  if (!spec) {
    spec = parseClass(name, raw);
    cache.set(raw, spec);
  }
  return spec;
}

/** Names of the slots an autogrow input may have, and how many it needs. */
export function autogrow(input: InputSpec): { names: string[]; min: number; spec: InputSpec } {
  const template = record(input.options.template);
  const [child] = Object.entries(record(record(template.input).required));
  const spec = parseInput(child?.[0] ?? "value", child?.[1] ?? ["*", {}], false, 1);
  const max = Math.min(Number(template.max) || 10, 100);
  const names = Array.isArray(template.names)
    ? template.names.map(String)
    : Array.from({ length: max }, (_, i) => `${typeof template.prefix === "string" ? template.prefix : spec.name}${i}`);
  return { names, min: Number(template.min) || 0, spec };
}

/** The type a slot takes part in links with: templates name the types they allow. */
export function slotType(input: InputSpec): string {
  if (input.type !== "COMFY_MATCHTYPE_V3") return input.type;
  const allowed = record(input.options.template).allowed_types;
  return typeof allowed === "string" && allowed ? allowed : "*";
}

export const isWidget = (input: InputSpec): boolean => input.role === "widget" || input.role === "dynamic";
