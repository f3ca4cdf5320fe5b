// The file of an app: what is saved, how it is read back, and which names it may have.
import type { ApiPrompt, FileRef, UiWorkflow } from "../api/types";
import { isApiPrompt } from "../api/workflow";
import { valuesFrom } from "../create/read";
import type { Values } from "./fields";
import type { FormDef, SeedMode } from "./form";

export interface AppFile {
  kind: "fresco-app";
  version: 1;
  name: string;
  about: string;
  prompt: ApiPrompt;
  workflow: UiWorkflow | null;
  form: FormDef;
  values: Values;
  /** A picture of its last result. */
  thumbnail: FileRef | null;
}

/** A file that is no app, with a sentence for the user. */
export class AppFileError extends Error {}

export const appFolder = "fresco/apps";
export const appPath = (name: string): string => `${appFolder}/${name}.json`;
/** Bigger files are refused before they are read. */
export const fileLimit = 64 * 1024 * 1024;
export const nodeLimit = 5000;

function record(value: unknown): Record<string, unknown> | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
}

/** The name of an app while it has none. */
export const UNTITLED_APP = "Untitled app";

/** Whether some JSON says it is one of our apps (and not a workflow). */
export function isAppFile(data: unknown): boolean {
  return record(data)?.kind === "fresco-app";
}

/** Reads an app's file; what is damaged in the form is left out, what is damaged in the workflow is refused. */
export function readApp(data: unknown, fallbackName = "App"): AppFile {
  const raw = record(data);
  if (raw?.kind !== "fresco-app") throw new AppFileError("This file is not a Fresco app.");
  if (typeof raw.version !== "number" || raw.version > 1) throw new AppFileError("This app was made by a newer Fresco. Update Fresco to open it.");
  if (!isApiPrompt(raw.prompt)) throw new AppFileError("This app has no workflow in it, so it cannot run.");
  if (Object.keys(raw.prompt).length > nodeLimit) throw new AppFileError(`This app has more than ${nodeLimit} nodes, which is more than this page can show.`);
  const prompt: ApiPrompt = {};
  for (const [id, node] of Object.entries(raw.prompt)) prompt[id] = { ...node, inputs: record(node.inputs) ?? {} };
  const workflow = record(raw.workflow);
  return {
    kind: "fresco-app",
    version: 1,
    name: cleanName(typeof raw.name === "string" ? raw.name : "") || cleanName(fallbackName) || "App",
    about: typeof raw.about === "string" ? raw.about.slice(0, 400) : "",
    prompt,
    workflow: workflow && Array.isArray(workflow.nodes) ? (workflow as unknown as UiWorkflow) : null,
    form: readForm(raw.form),
    values: record(raw.values) ?? {},
    thumbnail: readFile(raw.thumbnail),
  };
}

function readForm(value: unknown): FormDef {
  const raw = record(value);
  const shown: FormDef["shown"] = [];
  for (const entry of Array.isArray(raw?.shown) ? raw.shown : []) {
    const field = record(entry);
    if (typeof field?.key !== "string") continue;
    shown.push(typeof field.label === "string" && field.label ? { key: field.key, label: field.label.slice(0, 80) } : { key: field.key });
  }
  const seeds: Record<string, SeedMode> = {};
  for (const [key, mode] of Object.entries(record(raw?.seeds) ?? {})) if (mode === "fixed" || mode === "random") seeds[key] = mode;
  return { shown, seeds, more: raw?.more !== false };
}

function readFile(value: unknown): FileRef | null {
  const raw = record(value);
  if (!raw || typeof raw.filename !== "string" || !raw.filename) return null;
  if (raw.type !== "output" && raw.type !== "input" && raw.type !== "temp") return null;
  return { filename: raw.filename, subfolder: typeof raw.subfolder === "string" ? raw.subfolder : "", type: raw.type };
}

/** A name that every file system takes: no path parts, no control characters, no reserved first sign. */
export function cleanName(name: string): string {
  return (
    name
      .normalize("NFC")
      // eslint-disable-next-line no-control-regex
      .replace(/[\u0000-\u001f\u007f/\\:*?"<>|#%]+/g, " ")
      .replace(/\s+/g, " ")
      .trim()
      .replace(/^[.~ ]+/, "")
      .slice(0, 60)
      .replace(/[. ]+$/, "")
      .trim()
  );
}

/** `name`, or "name 2" and so on, so that no app is overwritten. Case does not tell names apart on every disk. */
export function freeName(name: string, taken: readonly string[]): string {
  const used = new Set(taken.map((t) => t.toLowerCase()));
  const base = cleanName(name) || "App";
  if (!used.has(base.toLowerCase())) return base;
  const stem = base.replace(/ \d+$/, "");
  for (let n = 2; ; n += 1) {
    const next = `${stem} ${n}`;
    if (!used.has(next.toLowerCase())) return next;
  }
}

/** A name for a workflow that has none: its file's, without what the saving node added. */
export function nameFromFile(fileName: string): string {
  return cleanName(
    fileName
      .replace(/(\.(ui|api|fresco-app))?\.[a-z0-9]{1,5}$/i, "")
      .replace(/_\d{4,6}_?$/, "")
      .replace(/[_]+/g, " "),
  );
}

/** How many words of a prompt make a name. */
const NAME_WORDS = 5;

/** What to call an app that was never named: the beginning of what it draws. */
export function proposedName(app: Pick<AppFile, "name" | "prompt">): string {
  if (app.name !== UNTITLED_APP) return app.name;
  const text = valuesFrom(app.prompt)?.prompt ?? "";
  const words = cleanName(text.split(/\s+/).filter(Boolean).slice(0, NAME_WORDS).join(" ")).replace(/[,;.]+$/, "");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
