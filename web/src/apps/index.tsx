// The Apps view: the list of apps, an open app, and everything by which a workflow gets here.
import { useCallback, useEffect, useRef, useState } from "react";
import { onBack, userdata } from "../api/client";
import { useRoute } from "../routes";
import { go, onHandoff, takeHandoff } from "../state/handoff";
import { useInfo } from "../state/info";
import { Button, EmptyState, toast, View } from "../ui";
import { AppList } from "./AppList";
import { AppPage } from "./AppPage";
import { type AppFile, nameFromFile } from "./appFile";
import { applyValues, lacks } from "./apply";
import { addApp, loadApp } from "./library";
import { appFrom, openData, type Opened, openFile, openText, sentenceOf } from "./open";
import { starterApp } from "./starters";
import { draftId, getDraft, setDraft } from "./work";
import css from "./index.module.css";

export default function Apps() {
  const { arg } = useRoute();
  const info = useInfo((s) => s.info);
  const failed = useInfo((s) => s.error);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const [round, setRound] = useState(0);
  const [over, setOver] = useState(false);

  useEffect(
    () =>
      void useInfo
        .getState()
        .load()
        .catch(() => undefined),
    [],
  );

  const take = useCallback(async (work: (info: Awaited<ReturnType<ReturnType<typeof useInfo.getState>["load"]>>) => Promise<Opened>) => {
    setBusy(true);
    setTrouble("");
    try {
      const found = await work(await useInfo.getState().load());
      if (found.kind === "app") {
        const name = await addApp(found.app);
        toast(`Added the app "${name}"`, "good");
        go(`#/apps/${encodeURIComponent(name)}`);
      } else {
        setDraft(found.app);
        for (const warning of found.warnings.slice(0, 3)) toast(warning, "warn");
        setRound((n) => n + 1);
        go(`#/apps/${draftId}`);
      }
    } catch (e) {
      setTrouble(sentenceOf(e));
      go("#/apps");
    } finally {
      setBusy(false);
    }
  }, []);

  // What another view left for this one.
  useEffect(() => {
    const look = () => {
      const left = takeHandoff("apps");
      if (!left) return;
      const { file, workflow, prompt, name = "" } = left;
      if (file) void take((known) => openFile(file, known));
      else if (workflow ?? prompt)
        void take(async (known) => {
          // The prompt holds what was really used; the editor's file goes along with it.
          const found = await openData(prompt ?? workflow, name, known);
          return found.kind === "workflow" && prompt && workflow ? { ...found, app: appFrom(found.app.prompt, workflow, name, known) } : found;
        });
    };
    look();
    return onHandoff(look);
  }, [take]);

  // A workflow may be pasted anywhere in the view, except into a field.
  useEffect(() => {
    const paste = (e: ClipboardEvent) => {
      const target = e.target as HTMLElement | null;
      if (target?.closest("input, textarea, select, dialog, [contenteditable]")) return;
      const file = e.clipboardData?.files[0];
      const text = e.clipboardData?.getData("text/plain") ?? "";
      if (file) void take((known) => openFile(file, known));
      else if (text.trim().startsWith("{")) void take((known) => openText(text, "", known));
    };
    addEventListener("paste", paste);
    return () => removeEventListener("paste", paste);
  }, [take]);

  const drop = {
    onDragOver: (e: React.DragEvent) => {
      if (!e.dataTransfer.types.includes("Files")) return;
      e.preventDefault();
      setOver(true);
    },
    onDragLeave: (e: React.DragEvent) => {
      if (!e.currentTarget.contains(e.relatedTarget as Node | null)) setOver(false);
    },
    // Fields that take a file of their own get it first and let nothing through.
    onDropCapture: () => setOver(false),
    onDrop: (e: React.DragEvent) => {
      e.preventDefault();
      const file = e.dataTransfer.files[0];
      if (file) void take((known) => openFile(file, known));
    },
  };

  return (
    <div className={`${css.area} ${over ? css.over : ""}`} {...drop}>
      {arg ? (
        <OpenApp key={`${arg} ${arg === draftId ? round : 0}`} id={arg} failed={failed} />
      ) : (
        <AppList
          info={info}
          trouble={trouble}
          busy={busy}
          onFile={(file) => void take((known) => openFile(file, known))}
          onText={(text) => void take((known) => openText(text, "", known))}
          onSaved={(path) =>
            void take(async (known) => {
              const data = await userdata.read<unknown>(`workflows/${path}`);
              if (data === null) throw new Error(`"${path}" no longer exists.`);
              return openData(data, nameFromFile(path.slice(path.lastIndexOf("/") + 1)), known);
            })
          }
        />
      )}
    </div>
  );
}

/** Finds the app an address names. */
function OpenApp({ id, failed }: { id: string; failed: string | null }) {
  const info = useInfo((s) => s.info);
  const [app, setApp] = useState<AppFile | null | undefined>(undefined);
  const [trouble, setTrouble] = useState("");
  const looked = useRef(false);
  const [tries, setTries] = useState(0);
  useEffect(
    () =>
      onBack(() => {
        setTrouble("");
        setTries((n) => n + 1);
      }),
    [],
  );

  useEffect(() => {
    if (!info || app) return;
    let live = true;
    const found = id === draftId ? Promise.resolve(getDraft()) : id.startsWith("~") ? Promise.resolve(starterApp(id.slice(1), info)) : loadApp(id);
    found.then(
      (next) => {
        if (!live) return;
        setApp(next);
        // The lists may be older than the files: look once more before something is called missing.
        if (next && !looked.current && lacksSomething(next, info))
          void useInfo
            .getState()
            .reload()
            .catch(() => undefined);
        looked.current = true;
      },
      (e: unknown) => live && setTrouble(sentenceOf(e)),
    );
    return () => {
      live = false;
    };
  }, [id, info, app, tries]);

  if (app && info) return <AppPage id={id} app={app} info={info} onSaved={setApp} />;
  const back = (
    <Button variant="primary" onClick={() => go("#/apps")}>
      All apps
    </Button>
  );
  if (trouble || app === null) {
    const starter = id.startsWith("~") && id !== draftId;
    return (
      <View title={starter ? "Ready-made app" : id === draftId ? "Not saved" : id}>
        <EmptyState icon="apps" action={back} title={trouble ? "This app cannot be opened" : starter ? "There is no model yet" : "There is no such app"}>
          {trouble ||
            (starter
              ? "Put a checkpoint into the models folder, then come back."
              : id === draftId
                ? "The workflow that was open here is gone. Open it again."
                : "It may have been renamed or deleted.")}
        </EmptyState>
      </View>
    );
  }
  return (
    <View title={id.startsWith("~") ? "Apps" : id}>
      {failed ? (
        <EmptyState
          icon="warning"
          title="Fresco does not answer"
          action={
            <Button
              icon="refresh"
              onClick={() =>
                void useInfo
                  .getState()
                  .load()
                  .catch(() => undefined)
              }
            >
              Try again
            </Button>
          }
        >
          {failed}
        </EmptyState>
      ) : (
        <p role="status">Opening…</p>
      )}
    </View>
  );
}

function lacksSomething(app: AppFile, info: NonNullable<ReturnType<typeof useInfo.getState>["info"]>): boolean {
  const missing = lacks(applyValues(app.prompt, app.values), info);
  return missing.models.length > 0 || missing.files.some((file) => file.wanted !== "");
}
