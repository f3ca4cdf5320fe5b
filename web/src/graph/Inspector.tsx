// The values of the selected node with large controls: a panel beside the canvas, a sheet on phones.
import { useMemo } from "react";
import { useInfo } from "../state/info";
import { Button, IconButton } from "../ui";
import { bypassSelected, foldSelected, muteSelected, removeSelected } from "./actions";
import { findNode, graphAt } from "./format";
import { rowsOf, sortOf, titleOf } from "./rows";
import { classSpec } from "./schema";
import { flatId, scopeOf, useGraph } from "./store";
import { WidgetInput } from "./WidgetInput";
import css from "./Inspector.module.css";

export function Inspector() {
  const open = useGraph((s) => s.inspector);
  const selected = useGraph((s) => s.selected);
  const doc = useGraph((s) => s.history.present);
  const path = useGraph((s) => s.path);
  const errors = useGraph((s) => s.errors);
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
        <Button icon="settings" onClick={() => useGraph.setState({ inspector: true })}>{title}</Button>
      </div>
    );
  }
  const flat = flatId(path, node.id);
  const problem = errors[flat];
  const spec = classSpec(info, node.type);
  return (
    <aside className={css.panel} aria-label={`Values of ${title}`}>
      <div className={css.head}>
        <h2>{title}</h2>
        <IconButton label="Close the values" icon="close" onClick={() => useGraph.setState({ inspector: false })} />
      </div>
      <p className={css.kind}>{sortOf(doc, node, info) === "instance" ? "Sub-graph" : node.type} · node {node.id}</p>
      {spec?.description && <p className={css.about}>{spec.description}</p>}
      {problem && <p className={css.problem} role="alert">{problem.message}</p>}
      <div className={css.rows}>
        {rows.map((row) => <WidgetInput key={row.key} row={row} node={flat} large error={problem?.inputs[row.key]} />)}
        {rows.length === 0 && <p className={css.kind}>This node has no values to set.</p>}
      </div>
      <div className={css.actions}>
        <Button size="s" icon="edit" onClick={() => useGraph.setState({ sheet: "rename" })}>Rename</Button>
        <Button size="s" icon="eyeOff" onClick={muteSelected}>{node.mode === 2 ? "Switch on" : "Switch off"}</Button>
        <Button size="s" icon="redo" onClick={bypassSelected}>{node.mode === 4 ? "Do not bypass" : "Bypass"}</Button>
        <Button size="s" icon="chevron" onClick={foldSelected}>{node.flags?.collapsed ? "Unfold" : "Fold"}</Button>
        {sortOf(doc, node, info) === "instance" && <Button size="s" icon="layers" onClick={() => useGraph.getState().enter({ def: node.type, node: node.id })}>Open</Button>}
        <Button size="s" variant="danger" icon="trash" onClick={removeSelected}>Delete</Button>
      </div>
    </aside>
  );
}
