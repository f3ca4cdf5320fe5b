// A job once more: the same graph and what was stored beside it, with the same or with new seeds.
import type { ApiNode, ApiPrompt, JobDetails, UiWorkflow } from "../api/types";
import { seedsOf } from "./settings";

export interface Again {
  prompt: ApiPrompt;
  workflow: UiWorkflow | undefined;
  extra: Record<string, unknown>;
}

/** What the server adds by itself to every job. */
const OF_THE_OLD = ["client_id", "create_time", "extra_pnginfo"];

/** The parts of a new job. The workflow gets an id of its own, because Create takes jobs of one id for one press of its button. */
export function again(details: Pick<JobDetails, "workflow">, newId: string, roll?: () => number): Again {
  const { prompt, extra_data } = structuredClone(details.workflow);
  const { workflow, ...pnginfo } = extra_data?.extra_pnginfo ?? {};
  const extra: Record<string, unknown> = Object.fromEntries(Object.entries(extra_data ?? {}).filter(([key]) => !OF_THE_OLD.includes(key)));
  if (Object.keys(pnginfo).length > 0) extra.extra_pnginfo = pnginfo;
  if (workflow?.id) workflow.id = newId;
  if (roll) {
    const fresh = newSeeds(prompt, workflow, roll);
    const form = extra.fresco_create as { seed?: unknown } | undefined;
    if (form && typeof form.seed === "number") form.seed = fresh.get(form.seed) ?? form.seed;
  }
  return { prompt, workflow, extra };
}

/** Changes every literal seed in place, in the prompt and in the saved workflow alike; equal seeds stay equal. */
function newSeeds(prompt: ApiPrompt, workflow: UiWorkflow | undefined, roll: () => number): Map<number, number> {
  const fresh = new Map<number, number>();
  for (const { node, input, value } of seedsOf(prompt)) {
    if (!fresh.has(value)) fresh.set(value, roll());
    const seed = fresh.get(value) as number;
    (prompt[node] as ApiNode).inputs[input] = seed;
    const widgets = workflow?.nodes?.find((n) => String(n.id) === node)?.widgets_values;
    if (Array.isArray(widgets)) {
      const at = widgets.indexOf(value);
      if (at >= 0) widgets[at] = seed;
    } else if (widgets && widgets[input] === value) widgets[input] = seed;
  }
  return fresh;
}

/** A random id in the form of a UUID; the browser's own is not there over plain http. */
export function randomId(random: () => number = Math.random): string {
  return "xxxxxxxx-xxxx-4xxx-axxx-xxxxxxxxxxxx".replace(/x/g, () => Math.floor(random() * 16).toString(16));
}
