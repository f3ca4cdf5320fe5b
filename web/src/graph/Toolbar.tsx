// The bar above the canvas: the document's name, files, undo, adding, running.
import { useState } from "react";
import { useLive } from "../state/live";
import { Button, IconButton, Menu, type MenuItem } from "../ui";
import { COMMANDS, command, type Tools } from "./commands";
import { definition } from "./format";
import { queueDoc } from "./run";
import { isDirty, useGraph } from "./store";
import { titleOf } from "./rows";
import { graphAt, findNode } from "./format";
import { useInfo } from "../state/info";
import css from "./Toolbar.module.css";

/** Where we are: the document and the sub-graphs we went into. */
function Crumbs() {
  const path = useGraph((s) => s.path);
  const name = useGraph((s) => s.name ?? s.suggested);
  const dirty = useGraph(isDirty);
  const doc = useGraph((s) => s.history.present);
  const info = useInfo((s) => s.info);
  const { leave } = useGraph.getState();
  const shown = name?.split("/").at(-1) ?? "New workflow";
  return (
    <nav className={css.crumbs} aria-label="Where you are">
      {path.length === 0 ? (
        <span className={css.name} title={name ?? undefined}>
          {shown}
          {dirty && (
            <span className={css.dirty} title="Not saved yet">
              {" "}
              • <span className="hidden-visually">not saved</span>
            </span>
          )}
        </span>
      ) : (
        <button type="button" onClick={() => leave(0)}>
          {shown}
          {dirty ? " •" : ""}
        </button>
      )}
      {path.map((step, i) => {
        const node = findNode(graphAt(doc, path[i - 1]?.def ?? null), step.node);
        const label = node ? titleOf(doc, node, info) : (definition(doc, step.def)?.name ?? "Sub-graph");
        return (
          <span key={`${step.def}${i}`} className={css.crumb}>
            <span aria-hidden="true"> › </span>
            {i === path.length - 1 ? (
              <span className={css.name} aria-current="location">
                {label}
              </span>
            ) : (
              <button type="button" onClick={() => leave(i + 1)}>
                {label}
              </button>
            )}
          </span>
        );
      })}
    </nav>
  );
}

export function Toolbar({ tools }: { tools: Tools }) {
  const past = useGraph((s) => s.history.past.length > 0 || s.previous !== null);
  const future = useGraph((s) => s.history.future.length > 0);
  const problems = useGraph((s) => Object.keys(s.errors).length);
  const path = useGraph((s) => s.path);
  useGraph((s) => s.selected);
  const [count, setCount] = useState(1);
  const [busy, setBusy] = useState(false);
  const running = useLive((s) => s.running?.id ?? null);
  const waiting = useLive((s) => s.jobs.filter((j) => j.status === "pending").length);
  const jobs = useGraph((s) => s.jobs);
  const mine = running !== null && jobs.includes(running);
  const items = (where: string[], leave: string[] = []): MenuItem[] =>
    COMMANDS.filter((c) => where.includes(c.where) && !leave.includes(c.id) && c.id !== "redo2" && !c.id.startsWith("colour-")).map((c) => ({
      label: c.label,
      icon: c.icon,
      disabled: !(c.enabled?.() ?? true),
      onSelect: () => void c.run(tools),
    }));
  const run = () => {
    setBusy(true);
    void queueDoc(count).finally(() => setBusy(false));
  };
  return (
    <header className={css.bar}>
      <h1 tabIndex={-1} className={css.title}>
        Graph
      </h1>
      <Crumbs />
      <div className={css.tools} role="toolbar" aria-label="Graph tools">
        {path.length > 0 && <IconButton label="Leave the sub-graph" icon="up" onClick={() => void command("leave").run(tools)} />}
        <Menu button={{ label: "File", icon: "folder" }} items={items(["file"])} align="start" />
        <IconButton label="Save (Ctrl+S)" icon="save" onClick={() => void command("save").run(tools)} className={css.wide} />
        <IconButton label="Undo (Ctrl+Z)" icon="undo" disabled={!past} onClick={() => useGraph.getState().undo()} />
        <IconButton label="Redo (Ctrl+Y)" icon="redo" disabled={!future} onClick={() => useGraph.getState().redo()} />
        <IconButton label="Add a node (Tab)" icon="plus" onClick={() => tools.search()} />
        <IconButton label="Show everything (.)" icon="fit" onClick={() => tools.fit()} className={css.wide} />
        <IconButton label="Arrange from left to right" icon="graph" onClick={() => void command("arrange").run(tools)} className={css.wide} />
        <Menu button={{ label: "Selection and view", icon: "more" }} items={items(["node", "view"])} />
      </div>
      <div className={css.run}>
        {problems > 0 && (
          <Button variant="danger" size="s" icon="warning" onClick={() => void command("problem").run(tools)}>
            {problems}
            <span className="hidden-visually"> nodes need attention</span>
          </Button>
        )}
        {waiting > 0 && <span className={css.waiting}>{waiting} waiting</span>}
        <label className={css.count}>
          <span className="hidden-visually">How many runs</span>
          <input
            type="number"
            min={1}
            max={100}
            value={count}
            onChange={(e) => setCount(Math.max(1, Math.min(100, Math.round(Number(e.target.value)) || 1)))}
          />
        </label>
        {mine && <IconButton label="Cancel the running job" icon="stop" onClick={() => tools.cancel()} />}
        <Button variant="primary" icon="play" busy={busy} onClick={run} title="Ctrl+Enter">
          Run
        </Button>
      </div>
    </header>
  );
}
