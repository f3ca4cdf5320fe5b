// The windows of the editor: opening, saving under a name, renaming a node, the list of all commands.
import { useEffect, useMemo, useState } from "react";
import { Button, Dialog, EmptyState, Field, IconButton, TextInput, toast } from "../ui";
import { COMMANDS, type Tools } from "./commands";
import { renameNode } from "./edits";
import { cleanName, listFiles, openFile, removeFile, saveFile } from "./files";
import { definition, type Doc, findNode, graphAt, type NodeId } from "./format";
import { titleOf } from "./rows";
import { renameDefinition } from "./subgraph";
import { scopeOf, selection, type Step, theDoc, theScope, useGraph } from "./store";
import { useInfo } from "../state/info";
import css from "./Sheets.module.css";

const close = () => useGraph.setState({ sheet: null });
const failed = (e: unknown) => toast(e instanceof Error ? e.message : String(e), "bad");

function Files({ tools }: { tools: Tools }) {
  const [names, setNames] = useState<string[] | null>(null);
  const [typed, setTyped] = useState("");
  const [asking, setAsking] = useState<string | null>(null);
  useEffect(() => {
    listFiles().then(setNames, (e: unknown) => {
      setNames([]);
      failed(e);
    });
  }, []);
  const shown = (names ?? []).filter((n) => n.toLowerCase().includes(typed.toLowerCase()));
  return (
    <Dialog
      open
      onClose={close}
      title="Open a workflow"
      actions={
        <Button
          icon="upload"
          onClick={() => {
            close();
            tools.pickFile();
          }}
        >
          From this computer…
        </Button>
      }
    >
      {names === null && <p role="status">Loading…</p>}
      {names?.length === 0 && <EmptyState title="Nothing saved yet">Workflows you save appear here, and in ComfyUI too.</EmptyState>}
      {names !== null && names.length > 0 && (
        <>
          <Field label="Search">
            <TextInput value={typed} onChange={setTyped} />
          </Field>
          <ul className={css.files}>
            {shown.map((n) => (
              <li key={n}>
                <button type="button" onClick={() => void openFile(n).then(close, failed)}>
                  {n}
                </button>
                {asking === n ? (
                  <Button size="s" variant="danger" onClick={() => void removeFile(n).then(() => setNames((l) => l?.filter((x) => x !== n) ?? null), failed)}>
                    Delete permanently
                  </Button>
                ) : (
                  <IconButton label={`Delete ${n}`} icon="trash" onClick={() => setAsking(n)} />
                )}
              </li>
            ))}
          </ul>
        </>
      )}
    </Dialog>
  );
}

function SaveAs() {
  const [name, setName] = useState(useGraph.getState().name ?? useGraph.getState().suggested ?? "");
  const [taken, setTaken] = useState<string[]>([]);
  useEffect(() => {
    listFiles().then(setTaken, () => undefined);
  }, []);
  const clean = cleanName(name);
  const exists = taken.includes(clean) && clean !== useGraph.getState().name;
  const save = () => {
    if (clean)
      void saveFile(clean).then(() => {
        close();
        toast(`Saved as ${clean}.`, "good", { duration: 2000 });
      }, failed);
  };
  return (
    <Dialog
      open
      onClose={close}
      title="Save the workflow"
      actions={
        <Button variant="primary" icon="save" disabled={!clean} onClick={save}>
          {exists ? "Replace" : "Save"}
        </Button>
      }
    >
      <form
        onSubmit={(e) => {
          e.preventDefault();
          save();
        }}
      >
        <Field
          label="Name"
          hint={exists ? `A workflow named “${clean}” already exists. Saving replaces it.` : "Saved with your other workflows, where ComfyUI finds it too."}
        >
          <TextInput value={name} onChange={setName} autoFocus />
        </Field>
      </form>
    </Dialog>
  );
}

function Rename() {
  const doc = theDoc();
  const id = selection().ids[0];
  const node = id === undefined ? undefined : findNode(graphAt(doc, theScope()), id);
  const def = definition(doc, node?.type);
  const [title, setTitle] = useState(node ? titleOf(doc, node, useInfo.getState().info) : "");
  if (!node) return null;
  const save = () => {
    close();
    useGraph.getState().edit((d) => (def && !node.title ? renameDefinition(d, def.id, title.trim()) : renameNode(d, theScope(), node.id, title.trim())));
  };
  return (
    <Dialog
      open
      onClose={close}
      title="Rename the node"
      actions={
        <Button variant="primary" onClick={save}>
          Rename
        </Button>
      }
    >
      <form
        onSubmit={(e) => {
          e.preventDefault();
          save();
        }}
      >
        <Field label="Title" hint="Leave it empty to restore the usual title.">
          <TextInput value={title} onChange={setTitle} autoFocus />
        </Field>
      </form>
    </Dialog>
  );
}

function CommandList({ tools }: { tools: Tools }) {
  const [typed, setTyped] = useState("");
  const found = useMemo(() => {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    return COMMANDS.filter((c) => c.id !== "commands" && c.id !== "redo2" && words.every((w) => c.label.toLowerCase().includes(w)));
  }, [typed]);
  const run = (i: number) => {
    const c = found[i];
    if (!c || !(c.enabled?.() ?? true)) return;
    close();
    void c.run(tools);
  };
  return (
    <Dialog open onClose={close} title="All commands">
      <form
        onSubmit={(e) => {
          e.preventDefault();
          run(0);
        }}
      >
        <Field label="Search">
          <TextInput value={typed} onChange={setTyped} autoFocus />
        </Field>
      </form>
      <ul className={css.files}>
        {found.map((c, i) => (
          <li key={c.id}>
            <button type="button" disabled={!(c.enabled?.() ?? true)} onClick={() => run(i)}>
              {c.label}
              {c.keys && <kbd>{c.keys}</kbd>}
            </button>
          </li>
        ))}
      </ul>
      <p className={css.hint}>Drag the canvas to move it. Hold Shift and drag to select. Arrow keys move the selection.</p>
    </Dialog>
  );
}

interface Place {
  path: Step[];
  id: NodeId;
  title: string;
  type: string;
}

/** Deeper sub-graphs than this are not looked into. */
const DEPTH = 8;

/** All nodes of the open workflow with the sub-graphs that lead to them. */
function placesOf(doc: Doc): Place[] {
  const info = useInfo.getState().info;
  const found: Place[] = [];
  const look = (path: Step[]) => {
    for (const node of graphAt(doc, scopeOf(path)).nodes) {
      const inner = definition(doc, node.type);
      found.push({ path, id: node.id, title: titleOf(doc, node, info), type: inner ? "Sub-graph" : node.type });
      if (inner && path.length < DEPTH) look([...path, { def: node.type, node: node.id }]);
    }
  };
  look([]);
  return found;
}

function Find({ tools }: { tools: Tools }) {
  const [typed, setTyped] = useState("");
  const all = useMemo(() => placesOf(theDoc()), []);
  const found = useMemo(() => {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((p) => words.every((w) => `${p.title} ${p.type} ${p.id}`.toLowerCase().includes(w)));
  }, [all, typed]);
  const show = (place: Place | undefined) => {
    if (!place) return;
    close();
    const id = String(place.id);
    const there = JSON.stringify(useGraph.getState().path) === JSON.stringify(place.path);
    if (!there) useGraph.setState({ path: place.path });
    useGraph.getState().select([id]);
    // Another graph is drawn first, and then shows all of itself.
    const soon = () => requestAnimationFrame(() => requestAnimationFrame(() => tools.fit([id])));
    if (there) tools.fit([id]);
    else requestAnimationFrame(soon);
  };
  return (
    <Dialog open onClose={close} title="Find a node">
      <form
        onSubmit={(e) => {
          e.preventDefault();
          show(found[0]);
        }}
      >
        <Field label="Title, class or number">
          <TextInput value={typed} onChange={setTyped} autoFocus />
        </Field>
      </form>
      <ul className={css.files}>
        {found.map((p) => (
          <li key={[...p.path.map((s) => s.node), p.id].join(":")}>
            <button type="button" onClick={() => show(p)}>
              {p.title}
              <small>
                {p.type === p.title ? "" : `${p.type}, `}node {[...p.path.map((s) => s.node), p.id].join(":")}
              </small>
            </button>
          </li>
        ))}
      </ul>
      {found.length === 0 && <p className={css.hint}>{all.length === 0 ? "This workflow has no nodes yet." : "No node of this workflow matches."}</p>}
    </Dialog>
  );
}

export function Sheets({ tools }: { tools: Tools }) {
  const sheet = useGraph((s) => s.sheet);
  if (sheet === "files") return <Files tools={tools} />;
  if (sheet === "saveAs") return <SaveAs />;
  if (sheet === "rename") return <Rename />;
  if (sheet === "find") return <Find tools={tools} />;
  if (sheet === "commands") return <CommandList tools={tools} />;
  return null;
}
