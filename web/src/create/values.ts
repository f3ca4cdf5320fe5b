// The values of the Create form, and how they are read back out of a prompt.
import type { ApiPrompt } from "../api/types";

export interface CreateValues {
  prompt: string;
  negative: string;
  seed: number;
  width: number;
  height: number;
  steps: number;
  cfg: number;
  sampler: string;
  scheduler: string;
  model: string;
}

export function valuesFrom(_prompt: ApiPrompt): Partial<CreateValues> | null {
  return null;
}
