// What the server says a model file is. Asked once for each file, when it is chosen.
import { getJson, onBack } from "../api/client";
import { useInfo } from "../state/info";
import { guessed, type Recipe, recipeFor } from "./recipes";

export interface Detected {
  /** null where no model that runs is in the file. */
  family: string | null;
  /** What the file holds: "diffusion", "text", "vae". */
  parts?: string[];
  reason?: string;
}

export type Folder = "checkpoints" | "diffusion_models";

const answers = new Map<string, Detected>();
const asked = new Map<string, Promise<Detected | null>>();

// Files may be others when the server is back.
onBack(() => {
  answers.clear();
  asked.clear();
});

/** The models that a picture can be made with, checkpoints first. */
export function drawingModels(models: (folder: string) => string[]): string[] {
  const whole = models("checkpoints");
  return [...whole, ...models("diffusion_models").filter((name) => !whole.includes(name))];
}

export function folderOf(model: string): Folder {
  const models = useInfo.getState().models;
  const alone = !models("checkpoints").includes(model) && models("diffusion_models").includes(model);
  return alone ? "diffusion_models" : "checkpoints";
}

/** What is known of a file so far. */
export function known(model: string): Detected | undefined {
  return answers.get(model);
}

/** Asks the server; null where it does not say. */
export function detect(model: string): Promise<Detected | null> {
  const before = asked.get(model);
  if (before) return before;
  const path = `/api/fresco/models/${folderOf(model)}?filename=${encodeURIComponent(model)}`;
  const answer = getJson<Detected>(path).then(
    (found) => {
      answers.set(model, found);
      return found;
    },
    () => {
      // A server that cannot say now may say later.
      asked.delete(model);
      return null;
    },
  );
  asked.set(model, answer);
  return answer;
}

/** How a file is used: by what the server said, or by its name as long as it has not. */
export function recipeOf(model: string): Recipe {
  return recipeFor(answers.get(model)?.family ?? guessed(model), model);
}
