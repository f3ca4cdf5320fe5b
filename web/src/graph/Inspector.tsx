// The values of the selected node with large controls: a panel beside the canvas, a sheet on phones.
import { useMemo } from "react";
import { useInfo } from "../state/info";
import { Button, IconButton, toast, Warnings } from "../ui";
import type { ObjectInfo } from "../api/types";
import { warningsIn } from "../api/warnings";
import { bypassSelected, foldSelected, join, muteSelected, removeSelected } from "./actions";
import { typeName } from "./compat";
import { refusal, type OutEnd } from "./connect";
import { disconnect } from "./edits";
import { definition, findNode, graphAt, INPUT_NODE, linkIndex, same, type Doc, type GNode, type NodeId, type Scope } from "./format";
import { lookAgain } from "./lacks";
import { openPicker } from "./Picker";
import { inputsOf, outputsOf, type InView } from "./slots";
import { rowsOf, sortOf, titleOf } from "./rows";
import { classSpec } from "./schema";
import { flatId, scopeOf, useGraph } from "./store";
import { WidgetInput } from "./WidgetInput";
import css from "./Inspector.module.css";

/** Inputs and what feeds them, so that links can be made without dragging. */
function Links({ doc, scope, node, info }: { doc: Doc; scope: Scope; node: GNode; info: ObjectInfo | null }) {
  const inputs = inputsOf(node, classSpec(info, node.type), definition(doc, node.type));
  if (inputs.length === 0) return null;
  const graph = graphAt(doc, scope);
  const source = (view: InView): string => {
    const link = view.link == null ? undefined : linkIndex(graph).get(String(view.link));
    return link ? nameOf(doc, scope, { node: link.origin_id, slot: link.origin_slot }, info) : NOTHING;
  };
  const open = (view: InView, anchor: HTMLElement) => {
    const to = { node: node.id, key: view.key };
    const ends = outputsIn(doc, scope, info).filter((end) => refusal(doc, scope, end, to, info) === null);
    const names = ends.map((end) => nameOf(doc, scope, end, info));
    openPicker({
      anchor,
      label: `Source of ${view.label}`,
      choices: [NOTHING, ...names],
      value: source(view),
      many: false,
      change: (chosen) => {
        const end = ends[names.indexOf(String(chosen))];
        if (end) join(end, to);
        else if (view.link != null) useGraph.getState().edit((d) => disconnect(d, scope, [view.link as NodeId]));
      },
    });
  };
  return (
    <div className={css.links}>
      <h3>Inputs</h3>
      {inputs.map((view) => (
        <div key={view.key} className={css.link}>
          <span title={typeName(view.type)}>{view.label || typeName(view.type)}</span>
          <Button size="s" onClick={(e) => open(view, e.currentTarget)} aria-label={`${view.label}: from ${source(view)}`}>
            {source(view)}
          </Button>
        </div>
      ))}
    </div>
  );
}

const NOTHING = "nothing";

function nameOf(doc: Doc, scope: Scope, end: OutEnd, info: ObjectInfo | null): string {
  const graph = graphAt(doc, scope);
  if (same(end.node, INPUT_NODE)) return `Inputs: ${definition(doc, scope)?.inputs[end.slot]?.name ?? ""}`;
  const from = findNode(graph, end.node);
  if (!from) return NOTHING;
  const out = outputsOf(from, classSpec(info, from.type), definition(doc, from.type))[end.slot];
  return `${titleOf(doc, from, info)} (${from.id}): ${out?.label || typeName(out?.type ?? "*")}`;
}

function outputsIn(doc: Doc, scope: Scope, info: ObjectInfo | null): OutEnd[] {
  const ports = (definition(doc, scope)?.inputs ?? []).map((_, slot) => ({ node: INPUT_NODE as NodeId, slot }));
  const nodes = graphAt(doc, scope).nodes.flatMap((n) =>
    outputsOf(n, classSpec(info, n.type), definition(doc, n.type)).map((o) => ({ node: n.id, slot: o.at })),
  );
  return [...ports, ...nodes];
}

export function Inspector() {
  const open = useGraph((s) => s.inspector);
  const selected = useGraph((s) => s.selected);
  const doc = useGraph((s) => s.history.present);
  const path = useGraph((s) => s.path);
  const errors = useGraph((s) => s.errors);
  const lacks = useGraph((s) => s.lacks);
  const results = useGraph((s) => s.results);
  const info = useInfo((s) => s.info);
  const scope = scopeOf(path);
  const id = selected.length === 1 ? selected[0] : undefined;
  const node = useMemo(() => (id === undefined ? undefined : findNode(graphAt(doc, scope), id)), [doc, scope, id]);
  const rows = useMemo(() => (node && open ? rowsOf(doc, scope, node, info) : []), [doc, scope, node, info, open]);
  if (!node) return null;
  const title = titleOf(doc, node, info);
  if (!open) {
    return (
      <div className={css.hint}>
        <Button icon="settings" onClick={() => useGraph.setState({ inspector: true })}>
          {title}
        </Button>
      </div>
    );
  }
  const flat = flatId(path, node.id);
  const problem = errors[flat] ?? lacks[flat];
  const warnings = warningsIn(results[flat]);
  const spec = classSpec(info, node.type);
  return (
    <aside className={css.panel} aria-label={`Values of ${title}`}>
      <div className={css.head}>
        <h2>{title}</h2>
        <IconButton label="Close the values" icon="close" onClick={() => useGraph.setState({ inspector: false })} />
      </div>
      <p className={css.kind}>
        {sortOf(doc, node, info) === "instance" ? "Sub-graph" : node.type} · node {node.id}
      </p>
      {spec?.description && <p className={css.about}>{spec.description}</p>}
      {problem && (
        <div className={css.problem} role="alert">
          <p>{problem.message}</p>
          {(problem.link ?? problem.instead ?? lacks[flat]) && (
            <div className={css.ways}>
              {Object.entries(problem.instead ?? {}).map(([input, value]) => (
                <Button
                  key={input}
                  size="s"
                  icon="check"
                  onClick={() => {
                    const row = rows.find((r) => r.key === input);
                    if (row) useGraph.getState().edit((d) => row.set(d, value));
                  }}
                >
                  Use {value}
                </Button>
              ))}
              {problem.link && (
                <a href={problem.link} target="_blank" rel="noopener noreferrer">
                  Download it
                </a>
              )}
              <Button size="s" icon="refresh" onClick={() => void lookAgain().catch((e: unknown) => toast(String(e), "bad"))}>
                Look again
              </Button>
            </div>
          )}
        </div>
      )}
      <Warnings list={warnings.map((text) => ({ node: flat, text }))} />
      <div className={css.rows}>
        {rows.map((row) => (
          <WidgetInput key={row.key} row={row} node={flat} large error={problem?.inputs[row.key] === problem?.message ? undefined : problem?.inputs[row.key]} />
        ))}
        {rows.length === 0 && <p className={css.kind}>This node has no values to set.</p>}
      </div>
      <Links doc={doc} scope={scope} node={node} info={info} />
      <div className={css.actions}>
        <Button size="s" icon="edit" onClick={() => useGraph.setState({ sheet: "rename" })}>
          Rename
        </Button>
        <Button size="s" icon="eyeOff" onClick={muteSelected}>
          {node.mode === 2 ? "Turn on" : "Turn off"}
        </Button>
        <Button size="s" icon="redo" onClick={bypassSelected}>
          {node.mode === 4 ? "Stop bypassing" : "Bypass"}
        </Button>
        <Button size="s" icon="chevron" onClick={foldSelected}>
          {node.flags?.collapsed ? "Unfold" : "Fold"}
        </Button>
        {sortOf(doc, node, info) === "instance" && (
          <Button size="s" icon="layers" onClick={() => useGraph.getState().enter({ def: node.type, node: node.id })}>
            Open
          </Button>
        )}
        <Button size="s" variant="danger" icon="trash" onClick={removeSelected}>
          Delete
        </Button>
      </div>
    </aside>
  );
}
