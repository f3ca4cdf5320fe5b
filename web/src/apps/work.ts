// What is not saved yet: the workflow just opened, changed values, and which runs belong to which app. Survives a reload.
import { remember, remembered } from "../state/settings";
import { type AppFile, readApp } from "./appFile";
import type { Values } from "./fields";
import type { FormDef } from "./form";

/** The address of a workflow that was opened but not saved. */
export const draftId = "~draft";

const draftKey = "fresco.apps.draft";
let draft: AppFile | null = null;

export function setDraft(app: AppFile): void {
  draft = app;
  forgetWork(draftId);
  remember(`apps.jobs.${draftId}`, undefined);
  try {
    sessionStorage.setItem(draftKey, JSON.stringify(app));
  } catch {
    // Too large to keep: it stays open until the page is reloaded.
    sessionStorage.removeItem(draftKey);
  }
}

export function getDraft(): AppFile | null {
  if (draft) return draft;
  try {
    const text = sessionStorage.getItem(draftKey);
    draft = text ? readApp(JSON.parse(text)) : null;
  } catch {
    draft = null;
  }
  return draft;
}

/** The opened workflow was saved, so it is no longer in between. */
export function clearDraft(): void {
  draft = null;
  sessionStorage.removeItem(draftKey);
}

export interface Work {
  values: Values;
  form: FormDef;
}

/** Changes since the app was saved. */
export const getWork = (id: string): Work | null => remembered<Work | null>(`apps.work.${id}`, null);
export const keepWork = (id: string, work: Work): void => remember(`apps.work.${id}`, work);
export const forgetWork = (id: string): void => remember(`apps.work.${id}`, undefined);

const runsKept = 12;

/** The runs of an app, newest first. */
export function runsOf(id: string): string[] {
  const list = remembered<unknown>(`apps.jobs.${id}`, []);
  return Array.isArray(list) ? list.filter((entry) => typeof entry === "string") : [];
}

export function addRun(id: string, job: string): string[] {
  const list = [job, ...runsOf(id).filter((entry) => entry !== job)].slice(0, runsKept);
  remember(`apps.jobs.${id}`, list);
  return list;
}

export function dropRun(id: string, job: string): string[] {
  const list = runsOf(id).filter((entry) => entry !== job);
  remember(`apps.jobs.${id}`, list);
  return list;
}

/** Runs and unsaved changes follow an app to its new name. */
export function moveWork(from: string, to: string): void {
  remember(`apps.jobs.${to}`, runsOf(from));
  remember(`apps.jobs.${from}`, undefined);
  const work = getWork(from);
  if (work) keepWork(to, work);
  forgetWork(from);
}

/** Files sent from this page: the lists fetched before do not have them. */
const sent = new Set<string>();
export const noteSent = (name: string): void => void sent.add(name);
export const wasSent = (name: string): boolean => sent.has(name);
