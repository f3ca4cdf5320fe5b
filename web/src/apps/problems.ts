// Sorts what the server refused to the fields concerned, in words a person can act on.
import type { ApiError } from "../api/client";
import type { ApiPrompt, ExecutionError, NodeErrorReason, ObjectInfo } from "../api/types";
import { type Field, keyOf } from "./fields";
import { titleOf } from "./graph";

export interface Problems {
  /** By field key. */
  fields: Record<string, string>;
  /** What belongs to no field. */
  others: string[];
}

export const noProblems: Problems = { fields: {}, others: [] };

function sentence(reason: NodeErrorReason): string {
  const config = reason.extra_info?.input_config;
  const options = Array.isArray(config) ? (config[1] as { min?: unknown; max?: unknown } | undefined) : undefined;
  switch (reason.type) {
    case "value_smaller_than_min":
      return options?.min === undefined ? "This is too small." : `This must be ${String(options.min)} or more.`;
    case "value_bigger_than_max":
      return options?.max === undefined ? "This is too large." : `This must be ${String(options.max)} or less.`;
    case "value_not_in_list": {
      const value = reason.extra_info?.received_value;
      if (typeof value !== "string" || !value) return "Choose one from the list.";
      return /\.\w{2,11}$/.test(value) ? `"${value}" is not on this machine. Choose another.` : `"${value}" is not one of the choices.`;
    }
    case "required_input_missing":
      return "This is required.";
    case "invalid_input_type":
      return "This is not the right kind of value.";
    default: {
      const details = reason.details && reason.details !== reason.message ? reason.details : "";
      return details ? `${reason.message}: ${details}` : reason.message;
    }
  }
}

/** The problems of a refused run. */
export function problemsOf(error: ApiError, fields: Field[], prompt: ApiPrompt, info: ObjectInfo): Problems {
  const byInput = new Map<string, Field>();
  for (const field of fields) for (const input of field.inputs) byInput.set(keyOf(field.node, input), field);
  const found: Problems = { fields: {}, others: [] };
  for (const [id, node] of Object.entries(error.nodeErrors ?? {})) {
    for (const reason of node.errors ?? []) {
      const input = String(reason.extra_info?.input_name ?? "");
      const field = byInput.get(keyOf(id, input));
      if (field) {
        const earlier = found.fields[field.key];
        found.fields[field.key] = earlier ? `${earlier} ${sentence(reason)}` : sentence(reason);
      } else {
        const text = `${titleOf(prompt, info, id)}${input ? `, ${input}` : ""}: ${sentence(reason)}`;
        if (!found.others.includes(text)) found.others.push(text);
      }
    }
  }
  if (!Object.keys(found.fields).length && !found.others.length) {
    found.others.push(error.details && error.details !== error.message ? `${error.message} ${error.details}` : error.message);
  }
  return found;
}

/** What stopped a run, as one sentence. */
export function failureOf(error: ExecutionError | undefined, prompt: ApiPrompt, info: ObjectInfo): string {
  if (!error) return "The run failed. The server gave no reason.";
  const message = (error.exception_message ?? "").trim().replace(/\s+/g, " ") || "no reason given";
  const where = error.node_id && prompt[error.node_id] ? titleOf(prompt, info, error.node_id) : (error.node_type ?? "");
  return where ? `"${where}" failed: ${message}` : `The run failed: ${message}`;
}
