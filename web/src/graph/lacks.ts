// What an opened workflow needs and this machine does not have, as sentences at the nodes concerned.
import { inspectWorkflow } from "../api/client";
import type { Inspection, MissingModel } from "../api/types";
import { useInfo } from "../state/info";
import { toast } from "../ui";
import { type Problem, theDoc, useGraph } from "./store";

/** What is missing, where it belongs, and what could take its place. */
export function lackSentence(model: MissingModel): string {
  const place = model.folder ? ` It belongs in the folder models/${model.folder}.` : "";
  const other = model.closest ? ` The closest name here is “${model.closest}”.` : model.choices.length > 0 ? " Or choose another one at this node." : "";
  return `“${model.wanted}” is not on this machine.${place}${other}`;
}

/** Problems by node, from what an inspection found missing. */
export function lacksOf(missing: Inspection["missing"]): Record<string, Problem> {
  const out: Record<string, Problem> = {};
  const add = (node: string, input: string, text: string, link?: string | null) => {
    const old = out[node];
    out[node] = { message: old ? `${old.message}\n${text}` : text, inputs: { ...old?.inputs, [input]: text }, link: old?.link ?? link ?? undefined };
  };
  for (const model of missing.models) {
    add(model.node_id, model.input, lackSentence(model), model.url);
    const found = out[model.node_id];
    if (found && model.closest) found.instead = { ...found.instead, [model.input]: model.closest };
  }
  for (const file of missing.files)
    if (file.wanted) add(file.node_id, file.input, `The file “${file.wanted}” is not in the input folder. Choose another one at this node.`);
  return out;
}

/** Asks the server anew which files there are, e.g. after one was put into its folder. */
export async function lookAgain(): Promise<void> {
  await useInfo.getState().reload();
  useGraph.setState({ errors: {} });
  await lookForLacks();
  const left = Object.keys(useGraph.getState().lacks).length;
  toast(
    left === 0 ? "Nothing is missing." : left === 1 ? "Something is still missing at one node." : `Something is still missing at ${left} nodes.`,
    left === 0 ? "good" : "info",
  );
}

/** Looks through the open document; what it finds is shown until the node is changed. */
export async function lookForLacks(): Promise<void> {
  const doc = theDoc();
  if (doc.nodes.length === 0) return;
  try {
    const { missing } = await inspectWorkflow(doc);
    if (theDoc() === doc) useGraph.setState({ lacks: lacksOf(missing) });
  } catch {
    // Running it will say what is wrong.
  }
}
