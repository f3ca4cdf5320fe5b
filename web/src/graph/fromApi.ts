// Turns an API prompt into a UI-format workflow, laid out left to right, that both front-ends open.
import type { ApiNode, ApiPrompt, ObjectInfo, UiWorkflow } from "../api/types";
import type { Doc, GNode, InSlot, Link } from "./format";
import { emptyDoc, writeLink } from "./format";
import { layered } from "./layout";
import { makeNode } from "./make";
import { boxOf, leastSize, TITLE, WIDTH } from "./metrics";
import { classSpec } from "./schema";
import { linkedWidget, widgetsOf } from "./widgets";

/** A value in a prompt that points at another node's output. */
function source(value: unknown, prompt: ApiPrompt): [string, number] | null {
  if (!Array.isArray(value) || value.length !== 2) return null;
  const [id, slot] = value as [unknown, unknown];
  if ((typeof id !== "string" && typeof id !== "number") || typeof slot !== "number") return null;
  return Object.hasOwn(prompt, String(id)) ? [String(id), slot] : null;
}

/** Lists are wrapped in prompts, because a list of two means a link there. */
function unwrap(value: unknown): unknown {
  if (value && typeof value === "object" && "__value__" in value) return (value as { __value__: unknown }).__value__;
  return value;
}

/** Ids of the nodes in the document: numbers stay, others get new numbers. */
function numberIds(prompt: ApiPrompt): Map<string, number> {
  const ids = new Map<string, number>();
  const taken = new Set<number>();
  for (const id of Object.keys(prompt)) {
    if (/^[1-9]\d{0,8}$/.test(id)) {
      ids.set(id, Number(id));
      taken.add(Number(id));
    }
  }
  let next = Math.max(0, ...taken) + 1;
  for (const id of Object.keys(prompt)) if (!ids.has(id)) ids.set(id, next++);
  return ids;
}

function nodeFrom(id: number, node: ApiNode, prompt: ApiPrompt, info: ObjectInfo): GNode {
  const spec = classSpec(info, node.class_type);
  const values: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(node.inputs ?? {})) if (!source(value, prompt)) values[name] = unwrap(value);
  // A prompt is a run with chosen seeds: they stay what they were.
  const controls = Object.fromEntries(Object.keys(values).map((name) => [name, "fixed"]));
  let made = makeNode(node.class_type, id, [0, 0], spec, values, controls);
  if (!spec) made = { ...made, widgets_values: Object.values(values) };
  const title = node._meta?.title;
  if (title && title !== (spec?.title ?? node.class_type)) made = { ...made, title };
  return made;
}

/** The input slot of a name; one the class does not know is added. */
function slotFor(node: GNode, name: string, type: unknown): number {
  node.inputs ??= [];
  const { inputs } = node;
  const at = inputs.findIndex((i) => i.name === name);
  if (at >= 0) return at;
  const slot: InSlot = { name, type, link: null };
  inputs.push(slot);
  return inputs.length - 1;
}

export function uiFromApi(prompt: ApiPrompt, info: ObjectInfo): UiWorkflow {
  const ids = numberIds(prompt);
  const nodes = new Map<string, GNode>();
  for (const [id, node] of Object.entries(prompt)) nodes.set(id, nodeFrom(ids.get(id) ?? 0, node, prompt, info));

  const links: Link[] = [];
  const arcs: { from: string; to: string }[] = [];
  for (const [id, node] of Object.entries(prompt)) {
    const target = nodes.get(id);
    for (const [name, value] of Object.entries(node.inputs ?? {})) {
      const from = source(value, prompt);
      const origin = from && nodes.get(from[0]);
      if (!from || !origin || !target) continue;
      origin.outputs ??= [];
      const { outputs } = origin;
      while (outputs.length <= from[1]) outputs.push({ name: "*", type: "*", links: [] });
      const out = outputs[from[1]];
      if (!out) continue;
      const slot = slotFor(target, name, out.type);
      const link: Link = { id: links.length + 1, origin_id: origin.id, origin_slot: from[1], target_id: target.id, target_slot: slot, type: out.type };
      const input = target.inputs?.[slot];
      if (input) input.link = link.id;
      out.links = [...(out.links ?? []), link.id];
      links.push(link);
      arcs.push({ from: from[0], to: id });
    }
  }

  for (const node of nodes.values()) {
    const spec = classSpec(info, node.type);
    const [width, height] = leastSize(node, spec);
    // A linked text needs no wide area.
    const narrow = spec && widgetsOf(node, spec).every((w) => w.spec.kind !== "multiline" || linkedWidget(node, w.name));
    node.size = [narrow ? WIDTH : width, height];
  }
  const boxes = [...nodes].map(([id, node]) => ({ id, ...boxOf(node, classSpec(info, node.type)) }));
  const places = layered(boxes, arcs);
  for (const [id, node] of nodes) {
    const at = places.get(id) ?? { x: 0, y: 0 };
    node.pos = [at.x, at.y + TITLE];
  }
  const column = (n: GNode) => (n.pos as [number, number])[0];
  [...nodes.values()]
    .sort((a, b) => column(a) - column(b))
    .forEach((node, order) => {
      node.order = order;
    });

  const { id: _random, ...empty } = emptyDoc();
  const doc: Doc = {
    ...(empty as Doc),
    last_node_id: Math.max(0, ...ids.values()),
    last_link_id: links.length,
    nodes: [...nodes.values()],
    links: links.map((l) => writeLink(l, null)),
  };
  return doc as unknown as UiWorkflow;
}
