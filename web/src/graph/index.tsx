// The graph editor: the whole workflow with every node, for those who want to change it.
import { ReactFlowProvider, useReactFlow } from "@xyflow/react";
import { useEffect, useMemo, useRef } from "react";
import { onBack, sendJson } from "../api/client";
import { onHandoff, takeHandoff } from "../state/handoff";
import { useInfo } from "../state/info";
import { useLive } from "../state/live";
import { toast } from "../ui";
import { copySelected, pasteText, removeSelected } from "./actions";
import { Canvas, useFit } from "./Canvas";
import { COMMANDS, keysOf, type Tools } from "./commands";
import { ContextMenu } from "./ContextMenu";
import { defaultDoc, importFile, openDoc } from "./files";
import { asDoc, type Doc } from "./format";
import { uiFromApi } from "./fromApi";
import { Inspector } from "./Inspector";
import { lookForLacks } from "./lacks";
import { Picker } from "./Picker";
import { startRunEvents } from "./run";
import { SearchBox } from "./SearchBox";
import { Sheets } from "./Sheets";
import { readDraft, scopeOf, startDrafts, useGraph } from "./store";
import { Toolbar } from "./Toolbar";
import css from "./index.module.css";

const typing = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/** Opens what another view left for this one. */
async function takeOver(): Promise<boolean> {
  const handoff = takeHandoff("graph");
  if (!handoff) return false;
  const info = await useInfo.getState().load();
  const doc = asDoc(handoff.workflow) ?? (handoff.prompt ? (uiFromApi(handoff.prompt, info) as unknown as Doc) : null);
  if (doc) openDoc(doc, null, false, handoff.name ?? null);
  return doc !== null;
}

/** The first document: handed over, left from last time, or the usual one. */
function useFirstDocument(): void {
  useEffect(() => {
    let gone = false;
    const begin = async () => {
      const draft = useGraph.getState().opened === 0 ? readDraft() : null;
      if (draft) {
        useGraph.getState().open(draft.doc, draft.name, !draft.dirty && draft.name !== null);
        useGraph.setState({ results: draft.results ?? {}, suggested: draft.suggested ?? null });
        void lookForLacks();
      }
      const info = await useInfo.getState().load();
      if (gone || (await takeOver())) return;
      if (useGraph.getState().opened === 0) useGraph.getState().open(defaultDoc(info), null, false);
    };
    const start = () => void begin().catch((e: unknown) => toast(e instanceof Error ? e.message : String(e), "bad"));
    start();
    const stops = [
      onHandoff(() => void takeOver()),
      onBack(() => {
        if (useGraph.getState().opened === 0) start();
      }),
    ];
    return () => {
      gone = true;
      stops.forEach((stop) => stop());
    };
  }, []);
}

function Editor() {
  const flow = useReactFlow();
  const fit = useFit();
  const root = useRef<HTMLDivElement>(null);
  const file = useRef<HTMLInputElement>(null);
  const mouse = useRef<{ x: number; y: number } | null>(null);
  const opened = useGraph((s) => s.opened);
  const scope = useGraph((s) => scopeOf(s.path));
  const error = useInfo((s) => s.error);
  useFirstDocument();
  useEffect(() => startDrafts(), []);
  useEffect(() => startRunEvents(), []);

  const tools = useMemo<Tools>(
    () => ({
      fit: (ids) => fit(ids),
      zoom: (by) => void flow.zoomTo(flow.getZoom() * by, { duration: 100 }),
      search: () => {
        const box = root.current?.querySelector(".react-flow")?.getBoundingClientRect();
        const inside = mouse.current && box && mouse.current.x > box.left && mouse.current.y > box.top;
        const at = inside && mouse.current ? mouse.current : { x: (box?.left ?? 0) + (box?.width ?? 0) / 2 - 120, y: (box?.top ?? 0) + (box?.height ?? 0) / 3 };
        useGraph.setState({ search: { screen: at, flow: flow.screenToFlowPosition(at), wanted: {} } });
      },
      pickFile: () => file.current?.click(),
      cancel: () => {
        const id = useLive.getState().running?.id;
        if (id) void sendJson("POST", "/api/interrupt", { prompt_id: id }).catch((e: unknown) => toast(e instanceof Error ? e.message : String(e), "bad"));
      },
    }),
    [fit, flow],
  );

  useEffect(() => {
    const busy = () => document.querySelector("dialog[open]") !== null;
    const down = (e: KeyboardEvent) => {
      if (e.defaultPrevented || busy()) return;
      const keys = keysOf(e);
      const inText = typing(e.target);
      if (inText && !["Ctrl+Enter", "Ctrl+Shift+Enter", "Ctrl+S", "Ctrl+Shift+S", "Ctrl+O", "Ctrl+F", "Ctrl+K"].includes(keys)) return;
      const found = COMMANDS.find((c) => c.keys === keys && (c.enabled?.() ?? true));
      if (!found) return;
      const pane = !(e.target instanceof Element) || e.target.matches("body, main, .react-flow, .react-flow__pane");
      const onCanvas = pane || (e.target instanceof Element && e.target.closest(".react-flow") !== null);
      // Keys with a meaning elsewhere on the page only count on the canvas.
      if (["Tab", "Delete", "Escape", "F", "I", "R", "."].includes(keys) && !onCanvas) return;
      // Tab walks from node to node once one has the focus.
      if (e.key === "Tab" && !pane) return;
      e.preventDefault();
      void found.run(tools);
    };
    const copy = (e: ClipboardEvent, cut: boolean) => {
      if (typing(e.target) || busy() || (getSelection()?.toString() ?? "") !== "") return;
      const text = copySelected();
      if (!text) return;
      e.preventDefault();
      e.clipboardData?.setData("text/plain", text);
      if (cut) removeSelected();
    };
    const onCopy = (e: ClipboardEvent) => copy(e, false);
    const onCut = (e: ClipboardEvent) => copy(e, true);
    const onPaste = (e: ClipboardEvent) => {
      if (typing(e.target) || busy()) return;
      const dropped = e.clipboardData?.files[0];
      const text = e.clipboardData?.getData("text/plain") ?? "";
      const at = mouse.current ? flow.screenToFlowPosition(mouse.current) : null;
      if (pasteText(text || null, at ? [Math.round(at.x), Math.round(at.y)] : null)) e.preventDefault();
      else if (dropped) {
        e.preventDefault();
        void importFile(dropped);
      } else if (text.trimStart().startsWith("{")) {
        e.preventDefault();
        void importFile(new File([text], "pasted.json", { type: "application/json" }));
      }
    };
    addEventListener("keydown", down);
    document.addEventListener("copy", onCopy);
    document.addEventListener("cut", onCut);
    document.addEventListener("paste", onPaste);
    return () => {
      removeEventListener("keydown", down);
      document.removeEventListener("copy", onCopy);
      document.removeEventListener("cut", onCut);
      document.removeEventListener("paste", onPaste);
    };
  }, [flow, tools]);

  return (
    <div
      ref={root}
      className={css.editor}
      onPointerMove={(e) => (mouse.current = { x: e.clientX, y: e.clientY })}
      onDragOver={(e) => e.dataTransfer.types.includes("Files") && e.preventDefault()}
      onDrop={(e) => {
        const dropped = e.dataTransfer.files[0];
        if (!dropped || e.defaultPrevented) return;
        e.preventDefault();
        void importFile(dropped);
      }}
    >
      <Toolbar tools={tools} />
      <div className={css.stage}>
        {opened > 0 ? (
          <Canvas key={`${opened} ${scope ?? ""}`} />
        ) : (
          <p className={css.wait} role="status">
            {error ?? "Opening the workflow…"}
          </p>
        )}
        <Inspector />
      </div>
      <SearchBox />
      <ContextMenu tools={tools} />
      <Picker />
      <Sheets tools={tools} />
      <input
        ref={file}
        type="file"
        hidden
        accept=".json,.png,.webp,.mp4,.webm,.flac,.mp3,.opus,application/json,image/png,image/webp,video/mp4,video/webm,audio/*"
        aria-label="Workflow file"
        onChange={(e) => {
          const chosen = e.target.files?.[0];
          e.target.value = "";
          if (chosen) void importFile(chosen);
        }}
      />
    </div>
  );
}

export default function Graph() {
  return (
    <ReactFlowProvider>
      <Editor />
    </ReactFlowProvider>
  );
}
