// Opens whatever was dropped, pasted, chosen or handed over, and says in one sentence why it cannot.
import { ApiError, inspectWorkflow } from "../api/client";
import type { ApiPrompt, Inspection, ObjectInfo, UiWorkflow } from "../api/types";
import { isApiPrompt } from "../api/workflow";
import { isModelFile, modelAdvice } from "../shell/drops";
import { type AppFile, AppFileError, fileLimit, isAppFile, nameFromFile, nodeLimit, readApp, UNTITLED_APP } from "./appFile";
import { fieldsOf, valuesOf } from "./fields";
import { defaultForm } from "./form";

export type Opened = { kind: "app"; app: AppFile } | { kind: "workflow"; app: AppFile; warnings: string[] };

/** An app of a workflow, with the form it starts with. */
export function appFrom(prompt: ApiPrompt, workflow: UiWorkflow | null, name: string, info: ObjectInfo): AppFile {
  const fields = fieldsOf(prompt, info);
  return {
    kind: "fresco-app",
    version: 1,
    name: name || UNTITLED_APP,
    about: "",
    prompt,
    workflow,
    form: defaultForm(fields, workflow),
    values: valuesOf(prompt, fields),
    thumbnail: null,
  };
}

function opened(found: Inspection, name: string, info: ObjectInfo): Opened {
  const count = Object.keys(found.prompt).length;
  if (!count) throw new AppFileError("This workflow is empty: it has no nodes that run.");
  if (count > nodeLimit) throw new AppFileError(`This workflow has ${count} nodes. Up to ${nodeLimit} can be shown here.`);
  return { kind: "workflow", app: appFrom(found.prompt, found.workflow, name, info), warnings: found.warnings ?? [] };
}

async function inspect(data: Blob | object, name: string, info: ObjectInfo): Promise<Opened> {
  try {
    return opened(await inspectWorkflow(data), name, info);
  } catch (e) {
    // A server without that route can still open workflows that need no conversion.
    if (e instanceof ApiError && (e.status === 404 || e.status === 405) && !(data instanceof Blob) && isApiPrompt(data)) {
      return opened({ kind: "api", workflow: null, prompt: data, missing: { nodes: [], models: [], files: [] }, warnings: [] }, name, info);
    }
    throw e;
  }
}

/** Opens JSON that was already read. */
export async function openData(data: unknown, name: string, info: ObjectInfo): Promise<Opened> {
  if (isAppFile(data)) return { kind: "app", app: readApp(data, name) };
  if (typeof data !== "object" || data === null) throw new AppFileError("This is JSON, but not a workflow.");
  return inspect(data, name, info);
}

export async function openText(text: string, name: string, info: ObjectInfo): Promise<Opened> {
  if (!text.trim()) throw new AppFileError("It is empty.");
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new AppFileError("This text is not a workflow. A workflow is JSON and starts with a curly bracket.");
  }
  return openData(data, name, info);
}

export async function openFile(file: File, info: ObjectInfo): Promise<Opened> {
  if (isModelFile(file.name)) throw new AppFileError(modelAdvice(file.name));
  if (file.size > fileLimit) throw new AppFileError(`"${file.name}" is larger than ${fileLimit / 1024 / 1024} MB, so it is not a workflow.`);
  if (!file.size) throw new AppFileError(`"${file.name}" is empty.`);
  const name = nameFromFile(file.name);
  const media = /^(image|video|audio)\//.test(file.type) || /\.(png|webp|mp4|webm|flac|mp3|opus|ogg)$/i.test(file.name);
  if (media) return inspect(file, name, info);
  return openText(await file.text(), name, info);
}

/** A sentence about what went wrong. */
export function sentenceOf(error: unknown): string {
  if (error instanceof ApiError) {
    if (error.status === 404 || error.status === 405) return "This Fresco cannot read such files yet. Save the workflow in the API format and try again.";
    const details = error.details && error.details !== error.message ? `: ${error.details}` : "";
    return `${error.message.replace(/[.:\s]+$/, "")}${details}`.replace(/([^.!?])$/, "$1.");
  }
  return error instanceof Error ? error.message : String(error);
}
