// Finds which texts ask for things and which ask to leave things out, by following links back from the samplers.
import type { ApiPrompt, ObjectInfo } from "../api/types";
import { type Link, linksInto, orderedIds } from "./graph";

export type Role = "positive" | "negative";

const positiveNames = /^(positive(_cond\w*)?|conditioning\w*|cond1?|positive_prompt)$/i;
/** A second side of guiders with two: it usually repeats the negative words, so it decides only where nothing else did. */
const secondNames = /^cond[2-9]$/i;
const negativeNames = /^(negative(_cond\w*)?|negative_prompt)$/i;
/** Classes whose result no longer says what the text said. */
const silent = /^ConditioningZeroOut$/;

function roleOfInput(input: string): Role | null {
  if (negativeNames.test(input)) return "negative";
  return positiveNames.test(input) ? "positive" : null;
}

function outputType(prompt: ApiPrompt, info: ObjectInfo, link: Link): string {
  const known = info[prompt[link.node]?.class_type ?? ""];
  const type = known?.output?.[link.slot];
  return typeof type === "string" ? type : "*";
}

/** Texts and conditionings are followed, and whatever may hold one. */
function carriesWords(type: string): boolean {
  return type === "CONDITIONING" || type === "STRING" || type === "*" || type.startsWith("COMFY_");
}

/** Whether the node hands conditioning on; samplers and guiders do not, so the search starts at those. */
function passesConditioning(prompt: ApiPrompt, info: ObjectInfo, id: string): boolean {
  const outputs = info[prompt[id]!.class_type]?.output as unknown[] | undefined;
  return outputs ? outputs.includes("CONDITIONING") : false;
}

/** The role of every node whose texts end in a sampler, in the order they were met (positive ones first). */
export function promptRoles(prompt: ApiPrompt, info: ObjectInfo): Map<string, Role> {
  const roles = new Map<string, Role>();
  const seen = new Set<string>();

  const walk = (start: Link, role: Role) => {
    const open = [start];
    for (let link = open.pop(); link; link = open.pop()) {
      const mark = `${link.node}/${link.slot}/${role}`;
      const node = prompt[link.node];
      if (seen.has(mark) || !node || silent.test(node.class_type)) continue;
      seen.add(mark);
      const into = linksInto(prompt, link.node);
      const sides = into.filter(({ input }) => roleOfInput(input) !== null);
      if (sides.some((s) => roleOfInput(s.input) === "positive") && sides.some((s) => roleOfInput(s.input) === "negative")) {
        // A node with both sides keeps them apart: take the input that belongs to the output used.
        const side = sideOfOutput(info, node.class_type, link.slot);
        for (const s of sides) if (roleOfInput(s.input) === side) open.push(s.link);
        continue;
      }
      if (!roles.has(link.node)) roles.set(link.node, role);
      // Reversed, so that the first input is looked at first.
      for (const { link: next } of [...into].reverse()) if (carriesWords(outputType(prompt, info, next))) open.push(next);
    }
  };

  const ids = orderedIds(prompt);
  const ends = ids.filter((id) => !passesConditioning(prompt, info, id));
  const others = ids.filter((id) => passesConditioning(prompt, info, id));
  for (const group of [ends, others]) {
    for (const [role, names] of [
      ["positive", positiveNames],
      ["negative", negativeNames],
      ["positive", secondNames],
    ] as const) {
      for (const id of group) {
        const outputs = info[prompt[id]!.class_type]?.output as unknown[] | undefined;
        for (const { input, link } of linksInto(prompt, id)) {
          if (!names.test(input) || !carriesWords(outputType(prompt, info, link))) continue;
          // "conditioning" of a node that passes it on says nothing about the side.
          if (group === others && !/^(positive|negative)/i.test(input)) continue;
          if (outputs && !outputs.length) continue;
          walk(link, role);
        }
      }
    }
  }
  return roles;
}

function sideOfOutput(info: ObjectInfo, classType: string, slot: number): Role {
  const name = String(info[classType]?.output_name?.[slot] ?? "");
  if (/negative/i.test(name)) return "negative";
  if (/positive/i.test(name)) return "positive";
  return slot === 1 ? "negative" : "positive";
}
