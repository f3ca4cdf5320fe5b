// An open app: its values and form with changes kept over reloads, its fields, what it lacks, and how it is run.
import { useEffect, useMemo, useRef, useState } from "react";
import { ApiError, queuePrompt } from "../api/client";
import type { ObjectInfo, UiWorkflow } from "../api/types";
import { useLive } from "../state/live";
import type { AppFile } from "./appFile";
import { applyValues, lacks, missingGroups, sourcesOf } from "./apply";
import { fieldsOf, type Values } from "./fields";
import { drawSeeds, type FormDef, resolve, setSeedMode, type SeedMode } from "./form";
import { sentenceOf } from "./open";
import { noProblems, type Problems, problemsOf } from "./problems";
import { withValues } from "./uiValues";
import { forgetWork, getWork, keepWork, type Work, wasSent } from "./work";

export function useApp(id: string, app: AppFile, info: ObjectInfo, onQueued: (job: string) => void) {
  const [work, showWork] = useState((): Work => {
    const kept = getWork(id);
    return { values: { ...app.values, ...kept?.values }, form: kept?.form ?? app.form };
  });
  const { values, form } = work;
  // A field that takes its value in the very event that runs the app must count, although nothing is drawn again yet.
  const latest = useRef(work);
  const setWork = (change: (old: Work) => Work) => {
    latest.current = change(latest.current);
    showWork(latest.current);
  };
  const [problems, setProblems] = useState<Problems>(noProblems);
  const [sending, setSending] = useState(false);
  const [tried, setTried] = useState(false);

  const dirty = useMemo(() => changed({ values, form }, app), [values, form, app]);
  useEffect(() => {
    if (dirty) keepWork(id, { values, form });
    else forgetWork(id);
  }, [id, values, form, dirty]);

  const fields = useMemo(() => fieldsOf(app.prompt, info), [app.prompt, info]);
  const { shown, rest } = useMemo(() => resolve(form, fields), [form, fields]);
  const prompt = useMemo(() => applyValues(app.prompt, values), [app.prompt, values]);
  const missing = useMemo(() => {
    const found = lacks(prompt, info);
    return { ...found, files: found.files.filter((file) => !wasSent(file.wanted)) };
  }, [prompt, info]);
  const groups = useMemo(() => missingGroups(missing.models, prompt, info, sourcesOf(app.workflow)), [missing, prompt, info, app.workflow]);

  const change = (changes: Values) => {
    setWork((old) => ({ ...old, values: { ...old.values, ...changes } }));
    // What is being put right is no longer wrong.
    setProblems((old) => {
      const left = { ...old.fields };
      for (const field of fields) if (field.inputs.some((input) => `${field.node}/${input}` in changes)) delete left[field.key];
      return { ...old, fields: left };
    });
  };
  const setForm = (next: FormDef) => setWork((old) => ({ ...old, form: next }));

  // Files that are not there are told before the server has to refuse them.
  const told = useMemo((): Problems => {
    const known = { ...problems.fields };
    for (const file of missing.files) {
      const key = `${file.node_id}/${file.input}`;
      if (file.wanted) known[key] ??= `"${file.wanted}" is not on this machine. Choose another.`;
      // Nobody has done anything wrong before the first try.
      else if (tried) known[key] ??= "Choose one first.";
    }
    return { ...problems, fields: known };
  }, [problems, missing.files, tried]);

  const run = async () => {
    setTried(true);
    if (missing.files.length) return;
    const drawn = drawSeeds(latest.current.values, latest.current.form, fields);
    setWork((old) => ({ ...old, values: drawn }));
    setProblems(noProblems);
    setSending(true);
    const ready = applyValues(app.prompt, drawn);
    try {
      const { prompt_id } = await queuePrompt(ready, { workflow: await editorFile(app, drawn, info), extra: { preview_method: "auto", fresco_app: app.name } });
      onQueued(prompt_id);
      void useLive
        .getState()
        .refresh()
        .catch(() => undefined);
    } catch (e) {
      setProblems(e instanceof ApiError ? problemsOf(e, fields, ready, info) : { fields: {}, others: [sentenceOf(e)] });
    } finally {
      setSending(false);
    }
  };

  return {
    values,
    form,
    fields,
    shown,
    rest,
    prompt,
    missing,
    groups,
    problems: told,
    sending,
    dirty,
    change,
    setForm,
    run,
    setSeed: (key: string, mode: SeedMode) => setForm(setSeedMode(form, key, mode)),
    blocked: missing.nodes.length > 0 || groups.length > 0,
    /** The app as it would be saved now. */
    current: (): AppFile => ({ ...app, values, form }),
  };
}

/** Whether there is something to save. A seed that is drawn anew each time is no change. */
export function changed(work: { values: Values; form: FormDef }, app: AppFile): boolean {
  if (JSON.stringify(work.form) !== JSON.stringify(app.form)) return true;
  const keys = new Set([...Object.keys(work.values), ...Object.keys(app.values)]);
  return [...keys].some((key) => work.form.seeds[key] !== "random" && !Object.is(work.values[key], app.values[key]));
}

/** What the editor opens when it is given the result: the workflow with these values, or one drawn from the prompt. */
export async function editorFile(app: AppFile, values: Values, info: ObjectInfo): Promise<UiWorkflow | undefined> {
  const kept = app.workflow ? withValues(app.workflow, app.prompt, values, info) : null;
  if (kept) return kept;
  try {
    const { uiFromApi } = await import("../graph/fromApi");
    return uiFromApi(applyValues(app.prompt, values), info);
  } catch {
    // The picture then carries the prompt alone, which opens too.
    return undefined;
  }
}
