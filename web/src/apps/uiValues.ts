// Writes a form's values into the editor's own file, so that a saved picture opens there with what was really used.
import type { ApiPrompt, ObjectInfo, UiNode, UiSubgraph, UiWorkflow } from "../api/types";
import { inputsOf } from "../api/workflow";
import { partsOf, type Values } from "./fields";

const widgetTypes = new Set(["INT", "FLOAT", "BOOLEAN", "STRING", "COMBO", "COLOR"]);

/** Where each widget of a class stands in `widgets_values`; null where that cannot be told. */
export function widgetPlaces(info: ObjectInfo, classType: string): Map<string, number> | null {
  const known = info[classType];
  if (!known) return null;
  const places = new Map<string, number>();
  let at = 0;
  for (const [name, spec] of inputsOf(known)) {
    const options = spec[1] ?? {};
    const type = Array.isArray(spec[0]) ? "COMBO" : String(spec[0]);
    if (type === "COMFY_DYNAMICCOMBO_V3") return null;
    if (!widgetTypes.has(type) || options.forceInput) continue;
    places.set(name, at);
    at += 1;
    const control = options.control_after_generate;
    if (type === "INT" && (control || (control === undefined && (name === "seed" || name === "noise_seed")))) at += 1;
    else if (type === "FLOAT" && control) at += 1;
    else if (type === "COMBO" && control) at += 2;
  }
  return places;
}

/**
 * The editor's file with these values, or null where one of them has no safe place in it: a wrong number there would be worse
 * than a file drawn anew from the prompt.
 */
export function withValues(workflow: UiWorkflow, prompt: ApiPrompt, values: Values, info: ObjectInfo): UiWorkflow | null {
  const changes = Object.entries(values).filter(([key, value]) => {
    const { node, input } = partsOf(key);
    const old = prompt[node];
    return old && value !== undefined && !Object.is(old.inputs[input], value);
  });
  if (!changes.length) return workflow;
  const copy = structuredClone(workflow);
  for (const [key, value] of changes) {
    const { node: id, input } = partsOf(key);
    const found = locate(copy, id);
    const old = prompt[id]!;
    if (!found || found.node.type !== old.class_type) return null;
    if (found.promoted.has(input) || found.node.inputs?.some((slot) => slot.widget?.name === input && slot.link != null)) return null;
    const stored = found.node.widgets_values;
    if (Array.isArray(stored)) {
      const at = widgetPlaces(info, old.class_type)?.get(input);
      if (at === undefined || at >= stored.length || !same(stored[at], old.inputs[input])) return null;
      stored[at] = value;
    } else if (stored && input in stored) stored[input] = value;
    else return null;
    const named = found.node.widgets_values_named as Record<string, unknown> | undefined;
    if (named && input in named) named[input] = value;
  }
  return copy;
}

function same(a: unknown, b: unknown): boolean {
  if (typeof a === "string" && typeof b === "string") return a.trim() === b.trim();
  return Object.is(a, b);
}

interface Located {
  node: UiNode;
  /** Inputs whose value an outer node holds. */
  promoted: Set<string>;
}

/** The node a prompt's id stands for; null where it is inside a sub-graph that is used more than once. */
function locate(workflow: UiWorkflow, id: string): Located | null {
  const graphs: UiSubgraph[] = workflow.definitions?.subgraphs ?? [];
  const everywhere = [workflow.nodes, ...graphs.map((graph) => graph.nodes)].flat();
  const promoted = new Set<string>();
  let nodes = workflow.nodes;
  let found: UiNode | undefined;
  for (const part of id.split(":")) {
    if (found) {
      const outer: UiNode = found;
      const graph = graphs.find((g) => g.id === outer.type);
      if (!graph || everywhere.filter((n) => n.type === graph.id).length !== 1) return null;
      for (const entry of (outer.properties?.proxyWidgets ?? []) as unknown[]) {
        if (Array.isArray(entry) && String(entry[0]) === part) promoted.add(String(entry[1]));
      }
      nodes = graph.nodes;
    }
    found = nodes.find((node) => String(node.id) === part);
    if (!found) return null;
  }
  return found ? { node: found, promoted } : null;
}
