// An open app: its form beside its results, with saving, editing the form, and what is missing.
import { useEffect, useRef, useState } from "react";
import type { ApiPrompt, ObjectInfo } from "../api/types";
import { go, setHandoff } from "../state/handoff";
import { useInfo } from "../state/info";
import { useLive } from "../state/live";
import { Button, Card, EmptyState, Menu, type MenuItem, settleFields, toast, toastUndo, View } from "../ui";
import { type AppFile, cleanName, proposedName } from "./appFile";
import { valuesOf } from "./fields";
import { FormEditor } from "./FormEditor";
import { FormView } from "./FormView";
import { addApp, download, renameApp, saveApp, takeAway } from "./library";
import { MissingPanel } from "./MissingPanel";
import { NameDialog } from "./NameDialog";
import { sentenceOf } from "./open";
import { ResultView } from "./ResultView";
import { thumbnailOf } from "./results";
import { RunPanel } from "./RunPanel";
import { editorFile, useApp } from "./useApp";
import { useHeading } from "./useHeading";
import { type Run, useRuns } from "./useRuns";
import { clearDraft, draftId, forgetWork, moveWork } from "./work";
import css from "./AppPage.module.css";

export interface AppPageProps {
  /** The address: a name, or "~draft" and the like. */
  id: string;
  app: AppFile;
  info: ObjectInfo;
  onSaved(app: AppFile): void;
}

export function AppPage({ id, app, info, onSaved }: AppPageProps) {
  useHeading(app.name);
  const saved = !id.startsWith("~");
  const { runs, add, remove } = useRuns(id);
  const results = useRef<HTMLDivElement>(null);
  const fresh = useRef(false);
  const open = useApp(id, app, info, (job) => {
    add(job);
    fresh.current = true;
  });
  const [editing, setEditing] = useState(false);
  const [naming, setNaming] = useState<"save" | "rename" | null>(null);
  const form = useRef<HTMLFormElement>(null);
  const active = runs.filter((run) => run.status === "pending" || run.status === "in_progress").reverse();
  const held = new Set(
    useLive((s) => s.jobs)
      .filter((job) => job.held)
      .map((job) => job.id),
  );
  // What is on hold is only shown while nothing else runs or waits.
  const current = active.find((run) => run.status === "in_progress") ?? active.find((run) => !held.has(run.id)) ?? active[0];
  // Results of a run that still goes on show as they come.
  const some = (run: Run) => run.results.files.length > 0 || run.results.texts.length > 0;
  const done = runs.filter((run) => some(run) || (run !== current && run.status !== "pending"));

  // On a phone the results are below the form: go there when a run has begun.
  useEffect(() => {
    if (!fresh.current || !runs[0]) return;
    fresh.current = false;
    if (matchMedia("(max-width: 959px)").matches) results.current?.scrollIntoView({ behavior: "smooth", block: "start" });
  }, [runs]);

  useThumbnail(
    saved ? app : null,
    runs.find((run) => run.status === "completed"),
    onSaved,
  );

  // The first field that is wrong gets the focus, so that nobody has to look for it.
  const wrong = Object.keys(open.problems.fields).length;
  const pressed = useRef(false);
  useEffect(() => {
    if (!pressed.current || !wrong) return;
    pressed.current = false;
    form.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus();
  }, [wrong]);

  const attempt = async (work: () => Promise<void>) => {
    try {
      await work();
    } catch (e) {
      toast(sentenceOf(e), "bad");
    }
  };
  const save = (name: string) =>
    attempt(async () => {
      const thumbnail = app.thumbnail ?? runs.map((run) => thumbnailOf(run.results)).find(Boolean) ?? null;
      const next = { ...open.current(), name: cleanName(name), thumbnail };
      if (saved && next.name === app.name) await saveApp(next);
      else next.name = await addApp(next);
      toast(`Saved "${next.name}"`, "good");
      if (saved) forgetWork(id);
      else moveWork(id, next.name);
      if (id === draftId) clearDraft();
      onSaved(next);
      forgetWork(next.name);
      if (next.name !== id) go(`#/apps/${encodeURIComponent(next.name)}`);
    });
  const toGraph = () =>
    attempt(async () => {
      setHandoff({ to: "graph", workflow: await editorFile(app, open.values, info), prompt: open.prompt, name: app.name });
      go("#/graph");
    });

  const items: MenuItem[] = [
    { label: "Open in Graph", icon: "graph", onSelect: () => void toGraph() },
    { label: "Download as a file", icon: "download", onSelect: () => download(open.current()) },
    ...(saved
      ? [
          { label: "Rename", icon: "edit" as const, onSelect: () => setNaming("rename") },
          {
            label: "Duplicate",
            icon: "copy" as const,
            onSelect: () => void attempt(async () => go(`#/apps/${encodeURIComponent(await addApp(open.current()))}`)),
          },
          {
            label: "Delete",
            icon: "trash" as const,
            danger: true,
            onSelect: () =>
              void attempt(async () => {
                const back = await takeAway(app.name);
                go("#/apps");
                if (back)
                  toastUndo(
                    `Deleted "${app.name}"`,
                    () =>
                      void attempt(async () => {
                        await back();
                        go(`#/apps/${encodeURIComponent(app.name)}`);
                      }),
                  );
              }),
          },
        ]
      : []),
    ...(saved && open.dirty ? [{ label: "Save as a new app", icon: "save" as const, onSelect: () => setNaming("save") }] : []),
  ];

  return (
    <View
      title={app.name}
      lead={app.about || (id === draftId ? "Not saved yet. Change what you like and run it." : undefined)}
      actions={
        <>
          <Button variant="quiet" icon="left" className={css.back} aria-label="All apps" onClick={() => go("#/apps")}>
            <span>All apps</span>
          </Button>
          <Button icon="settings" className={css.plain} aria-pressed={editing} onClick={() => setEditing(!editing)}>
            Edit form
          </Button>
          {saved ? (
            <Button icon="save" className={css.plain} disabled={!open.dirty} onClick={() => void save(app.name)}>
              {open.dirty ? "Save" : "Saved"}
            </Button>
          ) : (
            <Button icon="save" className={css.plain} onClick={() => setNaming("save")}>
              <span>
                Save<span className={css.long}> as an app</span>
              </span>
            </Button>
          )}
          <Menu button={{ label: "More actions", icon: "more" }} items={items} />
        </>
      }
    >
      <div className={css.columns}>
        <div className={css.left}>
          <MissingPanel
            nodes={open.missing.nodes}
            models={open.groups}
            onSubstitute={open.change}
            onGraph={() => void toGraph()}
            onLookAgain={() => void attempt(async () => void (await useInfo.getState().reload()))}
          />
          <Card>
            {editing ? (
              <FormEditor fields={open.fields} form={open.form} info={info} onChange={open.setForm} onDone={() => setEditing(false)} />
            ) : (
              <form
                ref={form}
                className={css.form}
                noValidate
                onSubmit={(e) => {
                  e.preventDefault();
                  settleFields();
                  pressed.current = true;
                  if (!open.blocked && !open.sending) void open.run();
                }}
                onKeyDown={(e) => {
                  // As in every prompt box: Ctrl+Enter runs.
                  if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) e.currentTarget.requestSubmit();
                }}
              >
                <FormView
                  shown={open.shown}
                  rest={open.rest}
                  form={open.form}
                  values={open.values}
                  info={info}
                  problems={open.problems}
                  onChange={open.change}
                  onSeed={open.setSeed}
                />
                {open.problems.others.length > 0 && (
                  <ul className={css.problems} role="alert">
                    {open.problems.others.slice(0, 10).map((text) => (
                      <li key={text}>{text}</li>
                    ))}
                  </ul>
                )}
                <div className={css.run}>
                  <Button type="submit" variant="primary" size="l" icon="play" busy={open.sending} disabled={open.blocked}>
                    {current ? "Run again" : "Run"}
                  </Button>
                  {open.blocked && (
                    <p className={css.why}>
                      {open.missing.nodes.length ? "It cannot run until the missing nodes are replaced." : "First choose a replacement for each missing model."}
                    </p>
                  )}
                </div>
              </form>
            )}
          </Card>
        </div>
        <div className={css.right} ref={results}>
          <p className="hidden-visually" role="status">
            {!current && runs[0] ? { completed: "Done", failed: "Failed", cancelled: "Cancelled", pending: "", in_progress: "" }[runs[0].status] : ""}
          </p>
          {current && <RunPanel key={current.id} run={current} waiting={active.length - 1} prompt={open.prompt} info={info} />}
          {done.map((run) => (
            <ResultView
              key={run.id}
              run={run}
              prompt={open.prompt}
              info={info}
              onRemove={() => remove(run.id)}
              onReuse={(prompt: ApiPrompt) => {
                open.change(
                  valuesOf(
                    prompt,
                    open.fields.filter((field) => prompt[field.node]),
                  ),
                );
                toast("The settings of that result are in the form", "good");
              }}
            />
          ))}
          {!current && !done.length && (
            <EmptyState icon="image" title="Results appear here">
              Press Run, or Ctrl+Enter in any field.
            </EmptyState>
          )}
        </div>
      </div>
      <NameDialog
        open={naming !== null}
        title={naming === "rename" ? "Rename" : "Save as an app"}
        first={naming === "rename" ? app.name : proposedName({ ...app, prompt: open.prompt })}
        action={naming === "rename" ? "Rename" : "Save"}
        onClose={() => setNaming(null)}
        onName={(name) => {
          const renaming = naming === "rename";
          setNaming(null);
          if (!renaming) return void save(name);
          void attempt(async () => {
            await renameApp(app.name, name);
            moveWork(app.name, name);
            go(`#/apps/${encodeURIComponent(name)}`);
          });
        }}
      />
    </View>
  );
}

/** A saved app wears the picture of its last result. */
function useThumbnail(app: AppFile | null, newest: Run | undefined, onSaved: (app: AppFile) => void) {
  const file = newest ? thumbnailOf(newest.results) : null;
  const mark = file ? `${file.subfolder}/${file.filename}` : "";
  useEffect(() => {
    if (!app || !file || (app.thumbnail && `${app.thumbnail.subfolder}/${app.thumbnail.filename}` === mark)) return;
    const next = { ...app, thumbnail: file };
    saveApp(next).then(
      () => onSaved(next),
      () => undefined,
    );
    // Only a new picture is a reason.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [mark, app?.name]);
}
