// The inputs and outputs a node shows: its class's slots joined by name with those the file stores.
import type { Definition, GNode, NodeId } from "./format";
import { typeText } from "./format";
import type { ClassSpec } from "./schema";
import { autogrow, slotType } from "./schema";
import { widgetsOf } from "./widgets";

export interface InView {
  key: string; // unique on the node
  name: string;
  label: string;
  type: string;
  at: number; // place in the stored inputs; -1 where none is stored yet
  link: NodeId | null;
  widget: string | null; // name of the widget it stands in for
  optional: boolean;
}

export interface OutView {
  at: number;
  label: string;
  type: string;
  links: NodeId[];
}

interface Known {
  name: string;
  label?: string | undefined;
  type: string;
  widget: string | null;
  optional: boolean;
}

function knownInputs(node: GNode, spec: ClassSpec | undefined, def: Definition | undefined): Known[] {
  if (def) {
    return def.inputs.map((port) => {
      const stored = node.inputs?.find((i) => i.name === port.name);
      return { name: port.name, label: port.label, type: typeText(port.type), widget: stored?.widget?.name ?? null, optional: true };
    });
  }
  if (!spec) return [];
  const shown = widgetsOf(node, spec);
  const sockets: Known[] = [];
  for (const i of spec.inputs) {
    if (i.role === "forced" && shown.some((w) => w.name === i.name)) continue;
    if (i.role === "socket" || i.role === "forced") {
      const label = typeof i.options.display_name === "string" ? i.options.display_name : undefined;
      sockets.push({ name: i.name, label, type: slotType(i), widget: null, optional: i.optional });
    } else if (i.role === "autogrow") {
      const grow = autogrow(i);
      const names = grow.names.map((n) => `${i.name}.${n}`);
      const last = Math.max(-1, ...(node.inputs ?? []).map((s) => names.indexOf(s.name)));
      for (const name of names.slice(0, Math.max(last + 1, grow.min, 1)))
        sockets.push({ name, label: name.slice(i.name.length + 1), type: grow.spec.type, widget: null, optional: names.indexOf(name) >= grow.min });
    }
  }
  const widgets = shown.filter((w) => !w.spec.options.socketless).map((w) => ({ name: w.name, type: w.spec.type, widget: w.name, optional: true }));
  return [...sockets, ...widgets];
}

const cache = new WeakMap<GNode, { spec: unknown; def: unknown; views: InView[] }>();

export function inputsOf(node: GNode, spec: ClassSpec | undefined, def?: Definition): InView[] {
  const held = cache.get(node);
  if (held && held.spec === spec && held.def === def) return held.views;
  const stored = node.inputs ?? [];
  const taken = new Set<number>();
  const keys = new Set<string>();
  const unique = (name: string): string => {
    let key = name;
    for (let n = 2; keys.has(key); n++) key = `${name}#${n}`;
    keys.add(key);
    return key;
  };
  const views: InView[] = [];
  for (const known of knownInputs(node, spec, def)) {
    const at = stored.findIndex((s, i) => s.name === known.name && !taken.has(i));
    const slot = at >= 0 ? stored[at] : undefined;
    if (at >= 0) taken.add(at);
    views.push({
      key: unique(known.name),
      name: known.name,
      label: slot?.label ?? known.label ?? known.name,
      type: known.type,
      at,
      link: slot?.link ?? null,
      widget: known.widget,
      optional: known.optional,
    });
  }
  stored.forEach((slot, at) => {
    if (taken.has(at)) return;
    views.push({
      key: unique(slot.name),
      name: slot.name,
      label: slot.label ?? slot.name,
      type: typeText(slot.type),
      at,
      link: slot.link ?? null,
      widget: spec ? null : (slot.widget?.name ?? null),
      optional: true,
    });
  });
  cache.set(node, { spec, def, views });
  return views;
}

export function outputsOf(node: GNode, spec: ClassSpec | undefined, def?: Definition): OutView[] {
  const stored = node.outputs ?? [];
  const known: { name: string; type: string }[] = def ? def.outputs.map((p) => ({ name: p.label ?? p.name, type: typeText(p.type) })) : (spec?.outputs ?? []);
  const count = Math.max(stored.length, known.length);
  return Array.from({ length: count }, (_, at) => {
    const slot = stored[at];
    const info = known[at];
    return { at, label: slot?.label ?? info?.name ?? slot?.name ?? "", type: slot ? typeText(slot.type) : (info?.type ?? "*"), links: slot?.links ?? [] };
  });
}
