// What is loaded to draw with a model: the file itself, and what it does not bring along.
import { useInfo } from "../state/info";
import { detect, folderOf, type Folder, recipeOf } from "./detected";
import type { Problem } from "./errors";
import { ORDINARY, type Recipe, recipeFor } from "./recipes";

export interface Kit {
  folder: Folder;
  recipe: Recipe;
  /** Files of the text encoders; empty where the model's file has them. */
  encoders: string[];
  /** The file of the autoencoder; null where the model's file has it. */
  vae: string | null;
}

/** A checkpoint that has everything. */
export const WHOLE: Kit = { folder: "checkpoints", recipe: ORDINARY, encoders: [], vae: null };

/** A file that has to be there first. */
export class NeedsFile extends Error {
  constructor(readonly problem: Problem) {
    super(problem.text);
  }
}

function needed(what: string, folder: string, example: string): NeedsFile {
  const text = `This model needs ${what}. Put it (for example ${example}) into the folder models/${folder} and try again.`;
  return new NeedsFile({ text, details: "", fields: { model: text }, help: "models" });
}

/** The kit from names; throws where a file is missing. */
export function kitFrom(folder: Folder, recipe: Recipe, parts: string[], models: (folder: string) => string[]): Kit {
  const kit: Kit = { folder, recipe, encoders: [], vae: null };
  if (recipe.encoders && !parts.includes("text")) {
    const files = models("text_encoders");
    kit.encoders = recipe.encoders.files.map(([pattern, example]) => {
      const found = files.find((name) => pattern.test(name));
      if (!found) throw needed("a text encoder", "text_encoders", example);
      return found;
    });
  }
  if (recipe.vae && !parts.includes("vae")) {
    const [pattern, example] = recipe.vae;
    const found = models("vae").find((name) => pattern.test(name));
    if (!found) throw needed("an autoencoder (VAE)", "vae", example);
    kit.vae = found;
  }
  return kit;
}

/** The kit for a model, once the server has said what it is. */
export async function kitOf(model: string): Promise<Kit> {
  const found = await detect(model);
  const folder = folderOf(model);
  if (found?.family === null) {
    const text = "Fresco cannot draw with this model.";
    throw new NeedsFile({ text, reason: found.reason, details: "", fields: { model: text }, help: "models" });
  }
  // A checkpoint of which nothing is known is used as one that has everything.
  const parts = found?.parts ?? (folder === "checkpoints" ? ["text", "vae"] : []);
  const recipe = found?.family ? recipeFor(found.family, model) : recipeOf(model);
  return kitFrom(folder, recipe, parts, useInfo.getState().models);
}
