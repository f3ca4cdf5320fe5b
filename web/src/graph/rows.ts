// The lines of values a node shows, whatever kind of node it is, each with how a new value gets into the document.
import type { ObjectInfo } from "../api/types";
import { editNode, setStored } from "./edits";
import type { Doc, GNode, Scope } from "./format";
import { definition, findNode, graphAt, linkIndex, typeText } from "./format";
import type { InputSpec } from "./schema";
import { classSpec } from "./schema";
import { promotedWidgets, setPromoted } from "./subgraph";
import { linkedWidget, setControl, setWidget, VIRTUAL, widgetsOf } from "./widgets";

export interface Row {
  key: string;
  label: string;
  spec: InputSpec;
  value: unknown;
  control: string | null; // what happens to the value after a run, where that can be chosen
  linked: boolean; // a link feeds it, so the value is not used
  input: string | null; // key of the input slot beside it
  set(doc: Doc, value: unknown): Doc;
  setControl(doc: Doc, mode: string): Doc;
}

export type Sort = "class" | "instance" | "note" | "reroute" | "primitive" | "missing";

export function sortOf(doc: Doc, node: GNode, info: ObjectInfo | null): Sort {
  if (node.type === "Reroute") return "reroute";
  if (node.type === "PrimitiveNode") return "primitive";
  if (VIRTUAL.has(node.type)) return "note";
  if (classSpec(info, node.type)) return "class";
  return definition(doc, node.type) ? "instance" : "missing";
}

export function plainSpec(name: string, kind: InputSpec["kind"], type = "STRING"): InputSpec {
  return { name, type, role: "widget", kind, options: {}, choices: [], fallback: null, controls: 0, optional: true, branches: [] };
}

const same = (doc: Doc): Doc => doc;

/** The widget a primitive stands in for: that of the first input it feeds. */
export function primitiveSpec(doc: Doc, scope: Scope, node: GNode, info: ObjectInfo | null): InputSpec {
  const graph = graphAt(doc, scope);
  for (const id of node.outputs?.[0]?.links ?? []) {
    const link = linkIndex(graph).get(String(id));
    const target = link && findNode(graph, link.target_id);
    const slot = target?.inputs?.find((i) => i.link === id);
    const spec = target && classSpec(info, target.type);
    const found = spec && slot && widgetsOf(target, spec).find((w) => w.name === (slot.widget?.name ?? slot.name));
    if (found) return found.spec;
  }
  const first: unknown = Array.isArray(node.widgets_values) ? node.widgets_values[0] : undefined;
  const type = typeText(node.outputs?.[0]?.type);
  const kind = type === "INT" ? "int" : type === "FLOAT" || typeof first === "number" ? "float" : type === "BOOLEAN" ? "bool" : "text";
  return plainSpec("value", kind, type);
}

function classRows(scope: Scope, node: GNode, info: ObjectInfo | null): Row[] {
  const spec = classSpec(info, node.type);
  if (!spec) return [];
  return widgetsOf(node, spec).map((w) => ({
    key: w.name,
    label: typeof w.spec.options.display_name === "string" ? w.spec.options.display_name : (w.name.split(".").at(-1) ?? w.name),
    spec: w.spec,
    value: w.value,
    control: w.spec.controls > 0 ? String(w.control) : null,
    linked: linkedWidget(node, w.name),
    input: w.spec.options.socketless ? null : w.name,
    set: (doc, value) => editNode(doc, scope, node.id, (n) => setWidget(n, spec, w.name, value)),
    setControl: (doc, mode) => editNode(doc, scope, node.id, (n) => setControl(n, spec, w.name, mode)),
  }));
}

function instanceRows(doc: Doc, scope: Scope, node: GNode, info: ObjectInfo | null): Row[] {
  return promotedWidgets(doc, node, info).map((p) => ({
    key: p.key,
    label: p.label,
    spec: p.spec,
    value: p.value,
    control: p.spec.controls > 0 && p.control !== undefined ? String(p.control) : null,
    linked: p.input !== null && (node.inputs ?? []).some((i) => i.name === p.input && i.link != null),
    input: p.input,
    set: (d, value) => setPromoted(d, scope, node.id, p, value, info),
    setControl: (d, mode) => setPromoted(d, scope, node.id, p, mode, info, true),
  }));
}

function primitiveRows(doc: Doc, scope: Scope, node: GNode, info: ObjectInfo | null): Row[] {
  const stored = Array.isArray(node.widgets_values) ? (node.widgets_values as unknown[]) : [];
  if (stored.length === 0 && (node.outputs?.[0]?.links ?? []).length === 0) return [];
  const spec = primitiveSpec(doc, scope, node, info);
  const numeric = spec.kind === "int" || spec.kind === "float" || spec.kind === "combo";
  return [
    {
      key: "value",
      label: typeof spec.name === "string" && spec.name ? spec.name : "value",
      spec: { ...spec, controls: numeric ? 1 : 0 },
      value: stored[0] ?? spec.fallback,
      control: numeric ? String(stored[1] ?? "fixed") : null,
      linked: false,
      input: null,
      set: (d, value) => setStored(d, scope, node.id, 0, value),
      setControl: (d, mode) => setStored(d, scope, node.id, 1, mode),
    },
  ];
}

/** Values of a node whose class the server does not know: shown by place, kept as they are. */
function missingRows(scope: Scope, node: GNode): Row[] {
  const stored: unknown = node.widgets_values;
  const entries: [string, unknown][] = Array.isArray(stored)
    ? stored.map((v, i) => [String(i), v])
    : stored && typeof stored === "object"
      ? Object.entries(stored)
      : [];
  return entries.map(([key, value]) => ({
    key,
    label: Array.isArray(stored) ? `value ${Number(key) + 1}` : key,
    spec: plainSpec(
      key,
      typeof value === "boolean"
        ? "bool"
        : typeof value === "number"
          ? "float"
          : typeof value === "string"
            ? value.includes("\n")
              ? "multiline"
              : "text"
            : "other",
      "*",
    ),
    value,
    control: null,
    linked: false,
    input: null,
    set: (doc, next) =>
      Array.isArray(stored)
        ? setStored(doc, scope, node.id, Number(key), next)
        : editNode(doc, scope, node.id, (n) => ({ ...n, widgets_values: { ...(n.widgets_values as object), [key]: next } })),
    setControl: same,
  }));
}

export function rowsOf(doc: Doc, scope: Scope, node: GNode, info: ObjectInfo | null): Row[] {
  switch (sortOf(doc, node, info)) {
    case "class":
      return classRows(scope, node, info);
    case "instance":
      return instanceRows(doc, scope, node, info);
    case "primitive":
      return primitiveRows(doc, scope, node, info);
    case "missing":
      return missingRows(scope, node);
    case "note": {
      const text = Array.isArray(node.widgets_values) ? (node.widgets_values as unknown[])[0] : "";
      return [
        {
          key: "text",
          label: "Text",
          spec: plainSpec("text", "multiline"),
          value: typeof text === "string" ? text : "",
          control: null,
          linked: false,
          input: null,
          set: (d, value) => setStored(d, scope, node.id, 0, value),
          setControl: same,
        },
      ];
    }
    default:
      return [];
  }
}

/** What a node is called: its own title, its sub-graph's name, its class's title. */
export function titleOf(doc: Doc, node: GNode, info: ObjectInfo | null): string {
  if (node.title) return node.title;
  if (node.type === "PrimitiveNode") return "Primitive";
  if (node.type === "MarkdownNote") return "Note";
  return classSpec(info, node.type)?.title ?? definition(doc, node.type)?.name ?? node.type;
}
