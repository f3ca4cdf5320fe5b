// Using a result again: in Create, in the graph, as an app, or simply once more.
import { queuePrompt } from "../api/client";
import type { FileRef, JobDetails } from "../api/types";
import { type CreateValues, valuesFrom } from "../create/values";
import { go, setHandoff } from "../state/handoff";
import { useLive } from "../state/live";
import { again, randomId } from "./again";
import { hasHugeNumber, seedsOf } from "./settings";

/** The values of Create's form: those it stored with the job, else what the graph says. */
function valuesOf(details: JobDetails): Partial<CreateValues> | null {
  const own = details.workflow.extra_data?.fresco_create;
  return typeof own === "object" && own !== null ? { ...(own as Partial<CreateValues>), seedLocked: true } : valuesFrom(details.workflow.prompt);
}

/** Whether Create can show these settings. */
export function fitsCreate(details: JobDetails): boolean {
  return valuesOf(details) !== null;
}

export function sendToCreate(details: JobDetails): void {
  const values = valuesOf(details);
  if (!values) return;
  setHandoff({ to: "create", values, job: details });
  go("#/create");
}

/** The picture becomes the start of a new one, with the words that made it. */
export function startFrom(details: JobDetails, image: FileRef): void {
  // How much to change is Create's to choose: a picture made from nothing changed everything.
  const { image: _image, mask: _mask, imageSize: _size, denoise: _denoise, ...values } = valuesOf(details) ?? {};
  setHandoff({ to: "create", values, image, mode: "image" });
  go("#/create");
}

function workflowOf(details: JobDetails) {
  return details.workflow.extra_data?.extra_pnginfo?.workflow;
}

export function openInGraph(details: JobDetails): void {
  setHandoff({ to: "graph", workflow: workflowOf(details), prompt: details.workflow.prompt });
  go("#/graph");
}

export function openAsApp(details: JobDetails): void {
  setHandoff({ to: "apps", workflow: workflowOf(details), prompt: details.workflow.prompt });
  go("#/apps");
}

export function hasSeed(details: JobDetails): boolean {
  return seedsOf(details.workflow.prompt).length > 0;
}

const SEED_END = 2 ** 32;

/** Queues the same graph again. The answer says what the user should know about it, if anything. */
export async function runAgain(details: JobDetails, newSeed: boolean): Promise<string | null> {
  const { prompt } = details.workflow;
  const next = again(details, randomId(), newSeed ? () => Math.floor(Math.random() * SEED_END) : undefined);
  await queuePrompt(next.prompt, { workflow: next.workflow, extra: next.extra });
  await useLive
    .getState()
    .refresh()
    .catch(() => undefined);
  return !newSeed && hasHugeNumber(prompt) ? "It contains a number that is too large for a browser, so the picture may differ." : null;
}
