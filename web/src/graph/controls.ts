// What happens to seeds after a run: every value set to go on goes on, in all graphs of the document.
import type { ObjectInfo } from "../api/types";
import { updateNode } from "./edits";
import type { Doc, GNode, Scope } from "./format";
import { definitions, graphAt, withGraph } from "./format";
import { primitiveSpec } from "./rows";
import { classSpec } from "./schema";
import { linkedWidget, nextNumber, setWidget, widgetsOf } from "./widgets";

function advanceNode(doc: Doc, scope: Scope, node: GNode, info: ObjectInfo, random: () => number): GNode {
  if (node.mode === 2 || node.mode === 4) return node;
  if (node.type === "PrimitiveNode") {
    const stored = Array.isArray(node.widgets_values) ? (node.widgets_values as unknown[]) : [];
    if (stored.length < 2 || stored[1] === "fixed") return node;
    const next = nextNumber(primitiveSpec(doc, scope, node, info), stored[0], stored[1], random);
    return next === stored[0] ? node : { ...node, widgets_values: [next, ...stored.slice(1)] };
  }
  const spec = classSpec(info, node.type);
  if (!spec) return node;
  let out = node;
  for (const w of widgetsOf(node, spec)) {
    if (w.spec.controls === 0 || linkedWidget(node, w.name)) continue;
    const next = nextNumber(w.spec, w.value, w.control, random);
    if (next !== w.value) out = setWidget(out, spec, w.name, next);
  }
  return out;
}

export function advance(doc: Doc, info: ObjectInfo, random: () => number): Doc {
  let out = doc;
  for (const scope of [null, ...definitions(doc).map((d) => d.id)]) {
    const start = graphAt(out, scope);
    let graph = start;
    for (const node of start.nodes) {
      const next = advanceNode(out, scope, node, info, random);
      if (next !== node) graph = updateNode(graph, node.id, () => next);
    }
    if (graph !== start) out = withGraph(out, scope, graph);
  }
  return out;
}
