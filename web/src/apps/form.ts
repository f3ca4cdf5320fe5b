// The form of an app: which fields are shown, in which order, under which words, and which seeds are drawn anew.
import type { UiWorkflow } from "../api/types";
import { type Field, keyOf, type Values } from "./fields";

export type SeedMode = "random" | "fixed";

export interface FormDef {
  shown: { key: string; label?: string }[];
  seeds: Record<string, SeedMode>;
  /** Whether the other fields stay reachable under "More". */
  more: boolean;
}

/** More fields than this are no short form; what is over stays under "More". */
export const shownLimit = 24;

/** The form a workflow starts with. */
export function defaultForm(fields: Field[], workflow: UiWorkflow | null): FormDef {
  const shown = fields
    .filter((field) => field.group !== "rest")
    .slice(0, shownLimit)
    .map((field) => ({ key: field.key }));
  const seeds: Record<string, SeedMode> = {};
  for (const field of fields) if (field.kind === "seed") seeds[field.key] = seedMode(workflow, field.node) ?? "random";
  return { shown, seeds, more: true };
}

export interface ShownField extends Field {
  ownLabel: boolean;
}

/** The fields to show and the rest, for the workflow as it is now; fields that are gone are left out. */
export function resolve(form: FormDef, fields: Field[]): { shown: ShownField[]; rest: Field[] } {
  const byKey = new Map(fields.map((field) => [field.key, field]));
  const shown: ShownField[] = [];
  const taken = new Set<string>();
  for (const { key, label } of form.shown) {
    const field = byKey.get(key);
    if (!field || taken.has(key)) continue;
    taken.add(key);
    shown.push({ ...field, label: label?.trim() || field.label, ownLabel: Boolean(label?.trim()) });
  }
  return { shown, rest: fields.filter((field) => !taken.has(field.key)) };
}

export function setShown(form: FormDef, fields: Field[], key: string, on: boolean): FormDef {
  if (!on) return { ...form, shown: form.shown.filter((entry) => entry.key !== key) };
  if (form.shown.some((entry) => entry.key === key)) return form;
  // It goes where the first order has it: before the first shown field that comes after it.
  const place = new Map(fields.map((field, index) => [field.key, index]));
  const own = place.get(key) ?? fields.length;
  const at = form.shown.findIndex((entry) => (place.get(entry.key) ?? -1) > own);
  const shown = [...form.shown];
  shown.splice(at < 0 ? shown.length : at, 0, { key });
  return { ...form, shown };
}

export function rename(form: FormDef, key: string, label: string): FormDef {
  return { ...form, shown: form.shown.map((entry) => (entry.key === key ? (label ? { key, label: label.slice(0, 80) } : { key }) : entry)) };
}

/** Moves a shown field by some places; it stays within the list. */
export function move(form: FormDef, key: string, by: number): FormDef {
  const from = form.shown.findIndex((entry) => entry.key === key);
  if (from < 0) return form;
  const to = Math.min(form.shown.length - 1, Math.max(0, from + by));
  const shown = [...form.shown];
  const [entry] = shown.splice(from, 1);
  shown.splice(to, 0, entry!);
  return { ...form, shown };
}

export function setSeedMode(form: FormDef, key: string, mode: SeedMode): FormDef {
  return { ...form, seeds: { ...form.seeds, [key]: mode } };
}

/** The largest seed drawn: small enough to be exact in every JSON reader. */
const seedLimit = 2 ** 50;

/** New values for the seeds that are drawn anew; the others stay. */
export function drawSeeds(values: Values, form: FormDef, fields: Field[], random: () => number = Math.random): Values {
  const next = { ...values };
  for (const field of fields) {
    if (field.kind !== "seed" || (form.seeds[field.key] ?? "random") !== "random") continue;
    const low = Math.max(0, field.min ?? 0);
    const high = Math.min(seedLimit, field.max ?? seedLimit);
    next[keyOf(field.node, field.inputs[0]!)] = low + Math.floor(random() * (high - low + 1));
  }
  return next;
}

interface AnyNode {
  id?: unknown;
  type?: unknown;
  widgets_values?: unknown;
}

/** What the editor was told to do with a node's seed after a run. */
function seedMode(workflow: UiWorkflow | null, id: string): SeedMode | null {
  const values = nodeAt(workflow, id)?.widgets_values;
  if (!Array.isArray(values)) return null;
  if (values.includes("fixed")) return "fixed";
  return values.some((value) => value === "randomize" || value === "increment" || value === "decrement") ? "random" : null;
}

/** The node of the editor's file that a prompt's id ("3", or "42:7" inside sub-graphs) stands for. */
export function nodeAt(workflow: UiWorkflow | null, id: string): AnyNode | null {
  if (!workflow) return null;
  const graphs = ((workflow.definitions as { subgraphs?: unknown } | undefined)?.subgraphs ?? []) as { id?: unknown; nodes?: AnyNode[] }[];
  let nodes: AnyNode[] = (workflow.nodes ?? []) as AnyNode[];
  let found: AnyNode | null = null;
  for (const part of id.split(":")) {
    if (found) nodes = (Array.isArray(graphs) ? graphs : []).find((graph) => graph.id === found!.type)?.nodes ?? [];
    found = nodes.find((node) => String(node.id) === part) ?? null;
    if (!found) return null;
  }
  return found;
}
