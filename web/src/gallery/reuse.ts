// Using a result again: in Create, in the graph, as an app, or simply once more.
import { queuePrompt } from "../api/client";
import type { FileRef, JobDetails } from "../api/types";
import { valuesFrom } from "../create/values";
import { go, setHandoff } from "../state/handoff";
import { useLive } from "../state/live";
import { hasHugeNumber, seedsOf, withNewSeeds } from "./settings";

/** Whether Create can show these settings. */
export function fitsCreate(details: JobDetails): boolean {
  return valuesFrom(details.workflow.prompt) !== null;
}

export function sendToCreate(details: JobDetails): void {
  const values = valuesFrom(details.workflow.prompt);
  if (!values) return;
  setHandoff({ to: "create", values });
  go("#/create");
}

/** The picture becomes the start of a new one, with the words that made it. */
export function startFrom(details: JobDetails, image: FileRef): void {
  // How much to change is Create's to choose: a picture made from nothing changed everything.
  const { image: _image, mask: _mask, imageSize: _size, denoise: _denoise, ...values } = valuesFrom(details.workflow.prompt) ?? {};
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
  const next = newSeed ? withNewSeeds(prompt, workflowOf(details), () => Math.floor(Math.random() * SEED_END)) : { prompt, workflow: workflowOf(details) };
  await queuePrompt(next.prompt, next.workflow ? { workflow: next.workflow } : undefined);
  await useLive.getState().refresh().catch(() => undefined);
  return !newSeed && hasHugeNumber(prompt) ? "A number in it is too large for a browser, so the picture may differ." : null;
}
