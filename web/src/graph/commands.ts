// Every action of the editor with its name and keys: the menus, the command list and the keyboard all read this.
import type { UiWorkflow } from "../api/types";
import type { IconName } from "../ui";
import { lookAgain } from "./lacks";
import { toast } from "../ui";
import {
  align,
  arrange,
  bypassSelected,
  colourSelected,
  copySelected,
  duplicateSelected,
  enterSelected,
  foldSelected,
  gatherSelected,
  groupSelected,
  muteSelected,
  pasteText,
  removeSelected,
  selectAll,
  showProblem,
  unpackSelected,
} from "./actions";
import { defaultDoc, download, openDoc, saveFile } from "./files";
import { definition, emptyDoc, findNode, graphAt } from "./format";
import { promptOf, queueDoc } from "./run";
import { selection, theDoc, theScope, useGraph } from "./store";
import { go, setHandoff } from "../state/handoff";
import { useInfo } from "../state/info";

export interface Command {
  id: string;
  label: string;
  keys?: string; // like "Ctrl+Shift+Z"; Ctrl is Cmd on a Mac
  icon?: IconName;
  where: "file" | "edit" | "node" | "view" | "run";
  enabled?(): boolean;
  run(tools: Tools): void | Promise<void>;
}

export interface Tools {
  fit(ids?: readonly string[]): void;
  zoom(by: number): void;
  search(): void;
  pickFile(): void;
  cancel(): void;
}

const some = () => selection().ids.length > 0;
const anything = () => {
  const s = selection();
  return s.ids.length + s.groups.length + s.links.length > 0;
};
const instances = () => {
  const doc = theDoc();
  return selection().ids.some((id) => {
    const n = findNode(graphAt(doc, theScope()), id);
    return n !== undefined && definition(doc, n.type) !== undefined;
  });
};
const failed = (e: unknown) => toast(e instanceof Error ? e.message : String(e), "bad");

/** Node colours as ComfyUI's menu has them, so that both show the same. */
export const COLOURS: { label: string; value: { color: string; bgcolor: string } | null }[] = [
  { label: "No colour", value: null },
  { label: "Red", value: { color: "#322", bgcolor: "#533" } },
  { label: "Brown", value: { color: "#332922", bgcolor: "#593930" } },
  { label: "Green", value: { color: "#232", bgcolor: "#353" } },
  { label: "Blue", value: { color: "#223", bgcolor: "#335" } },
  { label: "Cyan", value: { color: "#233", bgcolor: "#355" } },
  { label: "Purple", value: { color: "#323", bgcolor: "#535" } },
  { label: "Yellow", value: { color: "#432", bgcolor: "#653" } },
];

/** What the open workflow is called, if it is. */
const docName = () => (useGraph.getState().name ?? useGraph.getState().suggested)?.split("/").at(-1);
const fileName = () => docName() ?? "workflow";

export const COMMANDS: Command[] = [
  { id: "run", label: "Run", keys: "Ctrl+Enter", icon: "play", where: "run", run: () => queueDoc(1) },
  { id: "runFirst", label: "Run at the front of the queue", keys: "Ctrl+Shift+Enter", icon: "play", where: "run", run: () => queueDoc(1, true) },
  { id: "cancel", label: "Cancel the running job", keys: "Ctrl+Alt+Enter", icon: "stop", where: "run", run: (t) => t.cancel() },
  {
    id: "problem",
    label: "Show the node that failed",
    icon: "warning",
    where: "run",
    enabled: () => Object.keys(useGraph.getState().errors).length > 0,
    run: (t) => {
      const id = showProblem();
      if (id) t.fit([id]);
    },
  },

  { id: "new", label: "New workflow", icon: "plus", where: "file", run: () => openDoc(emptyDoc(), null, false) },
  {
    id: "starter",
    label: "New text-to-picture workflow",
    icon: "create",
    where: "file",
    run: () => {
      const info = useInfo.getState().info;
      if (info) openDoc(defaultDoc(info), null, false);
    },
  },
  { id: "open", label: "Open…", keys: "Ctrl+O", icon: "folder", where: "file", run: () => useGraph.setState({ sheet: "files" }) },
  {
    id: "save",
    label: "Save",
    keys: "Ctrl+S",
    icon: "save",
    where: "file",
    run: async () => {
      const { name } = useGraph.getState();
      if (name === null) {
        useGraph.setState({ sheet: "saveAs" });
        return;
      }
      await saveFile(name).then(() => toast("Saved.", "good", { duration: 1500 }), failed);
    },
  },
  { id: "saveAs", label: "Save as…", keys: "Ctrl+Shift+S", icon: "save", where: "file", run: () => useGraph.setState({ sheet: "saveAs" }) },
  { id: "import", label: "Open a file from this computer…", icon: "upload", where: "file", run: (t) => t.pickFile() },
  { id: "export", label: "Download as workflow", icon: "download", where: "file", run: () => download(`${fileName()}.json`, theDoc()) },
  {
    id: "exportApi",
    label: "Download for the API",
    icon: "download",
    where: "file",
    run: async () => {
      await promptOf(theDoc()).then((i) => download(`${fileName()}-api.json`, i.prompt), failed);
    },
  },
  {
    id: "app",
    label: "Use as an app",
    icon: "apps",
    where: "file",
    run: () => {
      setHandoff({ to: "apps", workflow: theDoc() as unknown as UiWorkflow, name: docName() });
      go("#/apps");
    },
  },

  { id: "undo", label: "Undo", keys: "Ctrl+Z", icon: "undo", where: "edit", enabled: canUndo, run: () => useGraph.getState().undo() },
  {
    id: "redo",
    label: "Redo",
    keys: "Ctrl+Y",
    icon: "redo",
    where: "edit",
    enabled: () => useGraph.getState().history.future.length > 0,
    run: () => useGraph.getState().redo(),
  },
  { id: "redo2", label: "Redo", keys: "Ctrl+Shift+Z", where: "edit", run: () => useGraph.getState().redo() },
  { id: "add", label: "Add a node…", keys: "Tab", icon: "plus", where: "edit", run: (t) => t.search() },
  {
    id: "copy",
    label: "Copy",
    icon: "copy",
    where: "edit",
    enabled: some,
    run: async () => {
      const text = copySelected();
      if (text) await navigator.clipboard?.writeText(text).catch(() => undefined);
    },
  },
  {
    id: "paste",
    label: "Paste",
    icon: "copy",
    where: "edit",
    run: async () => {
      const text = await navigator.clipboard?.readText?.().catch(() => null);
      if (!pasteText(text ?? null, null) && !pasteText(null, null)) toast("Nothing to paste.", "info", { duration: 2000 });
    },
  },
  { id: "duplicate", label: "Duplicate", keys: "Ctrl+D", icon: "copy", where: "edit", enabled: some, run: duplicateSelected },
  { id: "delete", label: "Delete", keys: "Delete", icon: "trash", where: "edit", enabled: anything, run: removeSelected },
  { id: "selectAll", label: "Select all", keys: "Ctrl+A", where: "edit", run: selectAll },

  { id: "rename", label: "Rename", keys: "F2", icon: "edit", where: "node", enabled: some, run: () => useGraph.setState({ sheet: "rename" }) },
  { id: "mute", label: "Turn off or on", keys: "Ctrl+M", icon: "eyeOff", where: "node", enabled: some, run: muteSelected },
  { id: "bypass", label: "Bypass or restore", keys: "Ctrl+B", icon: "redo", where: "node", enabled: some, run: bypassSelected },
  { id: "fold", label: "Fold or unfold", keys: "Alt+C", icon: "chevron", where: "node", enabled: some, run: foldSelected },
  { id: "group", label: "Group the selection", keys: "Ctrl+G", icon: "compare", where: "node", enabled: some, run: groupSelected },
  { id: "gather", label: "Make a sub-graph", keys: "Ctrl+Shift+E", icon: "layers", where: "node", enabled: some, run: gatherSelected },
  { id: "unpack", label: "Unpack the sub-graph", icon: "layers", where: "node", enabled: instances, run: unpackSelected },
  { id: "enter", label: "Open the sub-graph", icon: "layers", where: "node", enabled: instances, run: enterSelected },
  {
    id: "inspect",
    label: "Show all values",
    keys: "I",
    icon: "settings",
    where: "node",
    enabled: some,
    run: () => useGraph.setState((s) => ({ inspector: !s.inspector })),
  },
  { id: "alignLeft", label: "Align left", where: "node", enabled: () => selection().ids.length > 1, run: () => align("left") },
  { id: "alignTop", label: "Align top", where: "node", enabled: () => selection().ids.length > 1, run: () => align("top") },
  ...COLOURS.map(
    (c): Command => ({
      id: `colour-${c.label}`,
      label: c.value ? `Colour: ${c.label.toLowerCase()}` : "Colour: none",
      icon: "brush",
      where: "node",
      enabled: anything,
      run: () => colourSelected(c.value),
    }),
  ),

  { id: "find", label: "Find a node in this workflow…", keys: "Ctrl+F", icon: "search", where: "view", run: () => useGraph.setState({ sheet: "find" }) },
  { id: "fit", label: "Show everything", keys: ".", icon: "fit", where: "view", run: (t) => t.fit() },
  {
    id: "fitSelection",
    label: "Show the selection",
    keys: "F",
    icon: "fit",
    where: "view",
    enabled: anything,
    run: (t) => t.fit(useGraph.getState().selected),
  },
  { id: "zoomIn", label: "Zoom in", keys: "Alt+=", icon: "zoomIn", where: "view", run: (t) => t.zoom(1.25) },
  { id: "zoomOut", label: "Zoom out", keys: "Alt+-", icon: "zoomOut", where: "view", run: (t) => t.zoom(0.8) },
  {
    id: "arrange",
    label: "Arrange from left to right",
    icon: "graph",
    where: "view",
    run: (t) => {
      arrange();
      requestAnimationFrame(() => t.fit());
    },
  },
  { id: "look", label: "Refresh the list of models", keys: "R", icon: "refresh", where: "view", run: () => lookAgain().catch((e: unknown) => void failed(e)) },
  {
    id: "leave",
    label: "Leave the sub-graph",
    keys: "Escape",
    icon: "up",
    where: "view",
    enabled: () => useGraph.getState().path.length > 0,
    run: () => useGraph.getState().leave(useGraph.getState().path.length - 1),
  },
  { id: "commands", label: "All commands…", keys: "Ctrl+K", icon: "keyboard", where: "view", run: () => useGraph.setState({ sheet: "commands" }) },
];

/** Past the first change, undoing leads back to the document that was open before. */
function canUndo(): boolean {
  const { history, previous } = useGraph.getState();
  return history.past.length > 0 || previous !== null;
}

export const command = (id: string): Command => COMMANDS.find((c) => c.id === id) as Command;

/** The keys of an event as commands write them. */
export function keysOf(e: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey">): string {
  const key = e.key === "Backspace" ? "Delete" : e.key.length === 1 ? e.key.toUpperCase() : e.key;
  return [
    e.ctrlKey || e.metaKey ? "Ctrl" : "",
    e.altKey ? "Alt" : "",
    e.shiftKey && (e.key.length > 1 || e.ctrlKey || e.metaKey) ? "Shift" : "",
    key === "/" ? "Tab" : key,
  ]
    .filter(Boolean)
    .join("+");
}
