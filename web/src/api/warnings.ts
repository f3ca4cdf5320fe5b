// What nodes warn of: a run that is not what it was meant to be, such as a LoRA that changes nothing.
import type { NodeOutput } from "./types";

export interface Warning {
  node: string;
  text: string;
}

/** Warnings of one node. */
export function warningsIn(output: NodeOutput | undefined | null): string[] {
  const list = output?.warnings;
  return Array.isArray(list) ? list.filter((text): text is string => typeof text === "string" && text !== "") : [];
}

/** Warnings of all nodes of a run, each text once. */
export function warningsOf(outputs: Record<string, NodeOutput> | undefined | null): Warning[] {
  const seen = new Set<string>();
  return Object.entries(outputs ?? {}).flatMap(([node, output]) =>
    warningsIn(output)
      .filter((text) => !seen.has(text) && seen.add(text))
      .map((text) => ({ node, text })),
  );
}
