// Which stored element belongs to which widget of a node, and writing values back to the same place. Values are stored in a
// row, and a class may have other widgets today than when the file was saved: where the file names its widgets, the names count.
import type { GNode, InSlot } from "./format";
import type { ClassSpec, InputSpec } from "./schema";

export interface Widget {
  name: string;
  spec: InputSpec;
  value: unknown;
  index: number; // in widgets_values where that is a list; -1 where it is a map, or a list of other widgets
  control: unknown; // stored mode of "control after generate", undefined where there is none
}

export const CONTROLS = ["fixed", "increment", "decrement", "randomize"] as const;
export const VIRTUAL = new Set(["Reroute", "PrimitiveNode", "Note", "MarkdownNote"]);

interface Walk {
  widgets: Widget[];
  count: number;
}

function walk(inputs: InputSpec[], stored: unknown[] | Record<string, unknown>, forced: boolean, surplusIn: number): Walk {
  const widgets: Widget[] = [];
  let at = 0;
  let surplus = surplusIn;
  const list = Array.isArray(stored) ? stored : null;
  const map = list ? null : (stored as Record<string, unknown>);

  const visit = (name: string, spec: InputSpec): void => {
    switch (spec.role) {
      case "socket":
      case "autogrow":
        return;
      case "forced":
        // It had a widget when the file was saved.
        if (map && map[name] != null) widgets.push({ name, spec, value: map[name], index: -1, control: undefined });
        if (forced) at += 1 + spec.controls;
        return;
      case "button":
        at += 1;
        return;
      case "display":
        if (surplus > 0 && list && list[at] === null) {
          at += 1;
          surplus -= 1;
        }
        return;
      default: {
        if (spec.type === "LOAD_3D") {
          at += surplus;
          surplus = 0;
        }
        const index = list ? at : -1;
        const held = list ? list[at] : map?.[name];
        const value = held === undefined ? spec.fallback : held;
        const control = spec.controls > 0 ? (list ? list[at + 1] : (map?.control_after_generate ?? undefined)) : undefined;
        widgets.push({ name, spec, value, index, control: spec.controls > 0 ? (control ?? defaultControl(spec)) : undefined });
        at += 1 + spec.controls;
        const branch = spec.branches.find((b) => b.key === value);
        for (const child of branch?.inputs ?? []) visit(`${name}.${child.name}`, child);
      }
    }
  };
  for (const input of inputs) visit(input.name, input);
  return { widgets, count: at };
}

export function defaultControl(spec: InputSpec): string {
  return spec.controls === 1 && (spec.name === "seed" || spec.name === "noise_seed") ? "randomize" : "fixed";
}

function fit(spec: ClassSpec, node: GNode): Walk {
  const stored = node.widgets_values;
  if (stored && typeof stored === "object" && !Array.isArray(stored)) return walk(spec.inputs, stored as Record<string, unknown>, false, 0);
  const values: unknown[] = Array.isArray(stored) ? stored : [];
  const named = node.widgets_values_named && typeof node.widgets_values_named === "object" ? node.widgets_values_named : undefined;
  if (named && Object.keys(named).some((name) => !hasWidget(spec, name))) return byName(spec, named, values, placesOf(spec, Object.keys(named), values.length));
  const slots = placesBySlots(spec, node, values.length);
  if (slots) return byName(spec, Object.fromEntries([...slots].map(([name, at]) => [name, values[at]])), values, slots);
  if (spec.inputs.some((i) => i.role === "forced")) {
    // Files from before front-end 1.16 hold dummies for inputs that must be linked: only an exact fit tells.
    const old = walk(spec.inputs, values, true, 0);
    if (old.count === values.length) return old;
  }
  const plain = walk(spec.inputs, values, false, 0);
  if (plain.count === values.length) return plain;
  if (named) {
    const read = walk(spec.inputs, named, false, 0);
    return { ...read, widgets: read.widgets.map((w, i) => ({ ...w, index: plain.widgets[i]?.index ?? -1 })) };
  }
  return values.length > plain.count ? walk(spec.inputs, values, false, values.length - plain.count) : plain;
}

function hasWidget(spec: ClassSpec, name: string): boolean {
  return spec.inputs.some(
    (i) => i.role !== "socket" && i.role !== "forced" && i.role !== "autogrow" && (i.name === name || (i.role === "dynamic" && name.startsWith(`${i.name}.`))),
  );
}

/** The widgets with values by name, and where the file's list has them. */
function byName(spec: ClassSpec, named: Record<string, unknown>, values: unknown[], places: Map<string, number> | null): Walk {
  const { widgets, count } = walk(spec.inputs, named, false, 0);
  return {
    count,
    widgets: widgets.map((w) => {
      const index = places?.get(w.name) ?? -1;
      return index >= 0 && w.spec.controls > 0 ? { ...w, index, control: values[index + 1] ?? w.control } : { ...w, index };
    }),
  };
}

/** Where a list has each of these widgets; null where they do not account for every element. */
function placesOf(spec: ClassSpec, names: string[], length: number): Map<string, number> | null {
  const places = new Map<string, number>();
  let at = 0;
  for (const name of names) {
    if (places.has(name)) return null;
    places.set(name, at);
    at += 1 + (spec.inputs.find((i) => i.name === name)?.controls ?? 0);
  }
  return names.length > 0 && at === length ? places : null;
}

/** Places by the names of the node's slots: newer editors save a slot for every widget. Null where they say what the order of the class says. */
function placesBySlots(spec: ClassSpec, node: GNode, length: number): Map<string, number> | null {
  const names = (node.inputs ?? []).flatMap((slot) => (typeof slot.widget?.name === "string" ? [slot.widget.name] : []));
  const here = spec.inputs.filter((i) => i.role === "widget" || i.role === "dynamic" || i.role === "button").map((i) => i.name);
  // The widgets of a dynamic choice are not in the class itself; the order knows them.
  const listed = names.filter((name) => !name.includes("."));
  return listed.every((name, i) => here[i] === name) ? null : placesOf(spec, names, length);
}

const read = new WeakMap<GNode, { spec: ClassSpec; widgets: Widget[] }>();

/** The widgets of a node with their values; read once per node object. */
export function widgetsOf(node: GNode, spec: ClassSpec): Widget[] {
  const known = read.get(node);
  if (known && known.spec === spec) return known.widgets;
  const { widgets } = fit(spec, node);
  read.set(node, { spec, widgets });
  return widgets;
}

/** The stored list for a new or rebuilt node, from values by name. */
export function valueList(spec: ClassSpec, values: Record<string, unknown>, controls: Record<string, unknown> = {}): unknown[] {
  const out: unknown[] = [];
  const visit = (name: string, input: InputSpec): void => {
    if (input.role === "button") out.push("image");
    if (input.role !== "widget" && input.role !== "dynamic") return;
    const value = Object.hasOwn(values, name) ? values[name] : input.fallback;
    out.push(value);
    if (input.controls > 0) out.push(controls[name] ?? defaultControl(input));
    if (input.controls > 1) out.push("");
    const branch = input.branches.find((b) => b.key === value);
    for (const child of branch?.inputs ?? []) visit(`${name}.${child.name}`, child);
  };
  for (const input of spec.inputs) visit(input.name, input);
  return out;
}

/** The node with one widget set. Elements nobody asked about stay as they are. */
export function setWidget(node: GNode, spec: ClassSpec, name: string, value: unknown): GNode {
  const widgets = widgetsOf(node, spec);
  const widget = widgets.find((w) => w.name === name);
  if (!widget) return node;
  const named = withNamed(node, name, value);
  if (widget.spec.role === "dynamic") {
    // The chosen key decides what follows, so the list is laid out anew.
    const values = Object.fromEntries(widgets.map((w) => [w.name, w.value]));
    const controls = Object.fromEntries(widgets.map((w) => [w.name, w.control]));
    return { ...named, widgets_values: valueList(spec, { ...values, [name]: value }, controls) };
  }
  if (widget.index < 0) return Object.is(value, widget.value) ? node : withWidget(named, widget, value);
  return { ...named, widgets_values: put(node, widgets, widget.index, value) };
}

/** The node with the mode of "control after generate" of one widget set. */
export function setControl(node: GNode, spec: ClassSpec, name: string, mode: string): GNode {
  const widgets = widgetsOf(node, spec);
  const widget = widgets.find((w) => w.name === name);
  if (!widget || widget.spec.controls === 0) return node;
  if (widget.index < 0 && Array.isArray(node.widgets_values)) return node;
  if (widget.index < 0) return { ...node, widgets_values: { ...(node.widgets_values as Record<string, unknown>), control_after_generate: mode } };
  return { ...node, widgets_values: put(node, widgets, widget.index + 1, mode) };
}

/** The node with a value for a widget that its list does not have: by name, or behind the others with a slot that names it. */
function withWidget(node: GNode, widget: Widget, value: unknown): GNode {
  const stored = node.widgets_values;
  const { name } = widget;
  if (!Array.isArray(stored)) return { ...node, widgets_values: { ...(stored as Record<string, unknown>), [name]: value } };
  if (node.widgets_values_named) return node;
  const slot: InSlot = { name, type: widget.spec.type, link: null, widget: { name } };
  const controls = [widget.control, ""].slice(0, widget.spec.controls);
  return { ...node, inputs: [...(node.inputs ?? []), slot], widgets_values: [...(stored as unknown[]), value, ...controls] };
}

function withNamed(node: GNode, name: string, value: unknown): GNode {
  const named = node.widgets_values_named;
  return named && typeof named === "object" ? { ...node, widgets_values_named: { ...named, [name]: value } } : node;
}

/** A copy of the stored list with one element set; a list that was cut short is filled up with what its widgets show. */
function put(node: GNode, widgets: Widget[], index: number, value: unknown): unknown[] {
  const list = Array.isArray(node.widgets_values) ? [...(node.widgets_values as unknown[])] : [];
  const shown = new Map<number, unknown>();
  for (const w of widgets) {
    shown.set(w.index, w.value);
    if (w.spec.controls > 0) shown.set(w.index + 1, w.control);
    if (w.spec.controls > 1) shown.set(w.index + 2, "");
  }
  while (list.length < index) list.push(shown.get(list.length) ?? null);
  list[index] = value;
  return list;
}

const SAFE = Number.MAX_SAFE_INTEGER;

/** The next value of a number by its mode; the same value where it stays. */
export function nextNumber(spec: InputSpec, value: unknown, mode: unknown, random: () => number): unknown {
  const low = Math.max(Number(spec.options.min ?? 0), -SAFE);
  const high = Math.min(Number(spec.options.max ?? SAFE), SAFE);
  if (spec.kind === "combo") {
    if (mode === "fixed" || spec.choices.length === 0) return value;
    const at = spec.choices.indexOf(value);
    const n = spec.choices.length;
    if (mode === "randomize") return spec.choices[Math.floor(random() * n)];
    if (mode === "increment-wrap") return spec.choices[(at + 1) % n];
    const next = mode === "decrement" ? at - 1 : mode === "increment" ? at + 1 : at;
    return spec.choices[Math.max(0, Math.min(n - 1, next))];
  }
  const step = Math.max(Number(spec.options.step ?? 1) || 1, spec.kind === "int" ? 1 : 0);
  const now = Number(value) || 0;
  if (mode === "increment") return Math.min(high, now + step);
  if (mode === "decrement") return Math.max(low, now - step);
  if (mode === "randomize") {
    const steps = Math.floor((high - low) / step);
    const drawn = low + Math.floor(random() * (steps + 1)) * step;
    return Math.min(high, Math.max(low, drawn));
  }
  return value;
}

/** Whether any input of a node is fed by a link under this widget name. */
export function linkedWidget(node: GNode, name: string): boolean {
  return (node.inputs ?? []).some((i) => i.link != null && (i.widget?.name ?? i.name) === name);
}
