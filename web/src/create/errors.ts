// What went wrong: a sentence, the reason that the server gave, and what to do. Only traces stay one click away.
import { ApiError } from "../api/client";
import type { ExecutionError, NodeError } from "../api/types";

export type Field = "prompt" | "negative" | "model" | "width" | "height" | "steps" | "cfg" | "seed" | "sampler" | "scheduler" | "loras" | "denoise" | "image";

export interface Problem {
  text: string;
  /** Why, in the server's words; shown with the text. */
  reason?: string;
  details: string;
  fields: Partial<Record<Field, string>>;
  /** A page that helps. */
  help?: "memory" | "models";
  /** The server could not be reached; over once it answers again. */
  away?: boolean;
}

export const AWAY = "Fresco does not answer. Is it still running?";

const FIELDS: Record<string, Field> = {
  ckpt_name: "model",
  lora_name: "loras",
  strength_model: "loras",
  strength_clip: "loras",
  steps: "steps",
  cfg: "cfg",
  seed: "seed",
  noise_seed: "seed",
  sampler_name: "sampler",
  scheduler: "scheduler",
  denoise: "denoise",
  width: "width",
  height: "height",
  image: "image",
};

const NAMES: Record<Field, string> = {
  prompt: "The prompt",
  negative: "What to avoid",
  model: "The model",
  width: "The width",
  height: "The height",
  steps: "The number of steps",
  cfg: "Guidance",
  seed: "The seed",
  sampler: "The sampler",
  scheduler: "The scheduler",
  loras: "A LoRA",
  denoise: "How much to change",
  image: "The start picture",
};

/** For choices that are gone. */
const CHOICES: Partial<Record<Field, string>> = { sampler: "that sampler", scheduler: "that scheduler" };

/** A request that was refused. */
export function problemOf(error: unknown): Problem {
  if (!(error instanceof ApiError)) {
    return { text: "Something went wrong on this page.", reason: error instanceof Error ? error.message : String(error), details: "", fields: {} };
  }
  const nodes = nodeDetails(error.nodeErrors);
  const details = [error.details, ...nodes].filter(Boolean).join("\n");
  if (error.status === 0) return { text: AWAY, details: error.details, fields: {}, away: true };
  if (error.status === 401 || error.status === 403) return { text: "Sign in first: Fresco asks for its token.", details: error.message, fields: {} };
  if (error.status === 413) return { text: "This picture is too large to send. Try a smaller one.", details: error.message, fields: {} };
  if (error.status === 429) return { text: "The queue is full. Wait until some pictures are done, then try again.", details: error.message, fields: {} };
  if (error.status === 503) return { text: "Fresco could not store the job. Is the disk full?", reason: error.message, details: error.details, fields: {} };
  const fields = fieldsOf(error.nodeErrors);
  const first = Object.values(fields)[0];
  if (first) return { text: first, details: details || error.message, fields, help: fields.model ? "models" : undefined };
  const [cause = "", ...rest] = [...(nodes.length > 0 ? nodes : [error.message]), error.details].filter(Boolean);
  return { text: "This job cannot run.", reason: cause, details: rest.join("\n"), fields };
}

function fieldsOf(nodes: Record<string, NodeError> | undefined): Problem["fields"] {
  const fields: Problem["fields"] = {};
  for (const node of Object.values(nodes ?? {})) {
    for (const reason of node.errors) {
      const input = reason.extra_info?.input_name;
      const field = typeof input === "string" ? FIELDS[input] : undefined;
      if (!field || fields[field]) continue;
      fields[field] = sentence(field, reason.type, reason.message);
    }
  }
  return fields;
}

function sentence(field: Field, type: string, message: string): string {
  const limit = /of (-?[\d.]+)\s*$/.exec(message)?.[1];
  if (type === "value_not_in_list") {
    if (field === "model") return "This model is no longer in the models folder. Choose another one.";
    if (field === "loras") return "One of the LoRAs is no longer in its folder. Remove it or choose another one.";
    return `This server does not have ${CHOICES[field] ?? NAMES[field].toLowerCase()}. Choose another one.`;
  }
  if (type === "value_smaller_than_min") return `${NAMES[field]} is too small${limit ? `: at least ${limit}` : ""}.`;
  if (type === "value_bigger_than_max") return `${NAMES[field]} is too large${limit ? `: at most ${limit}` : ""}.`;
  if (field === "image") return "The start picture is no longer there. Choose it again.";
  return `${NAMES[field]} cannot be used as it is.`;
}

function nodeDetails(nodes: Record<string, NodeError> | undefined): string[] {
  return Object.entries(nodes ?? {}).flatMap(([id, node]) =>
    node.errors.map((e) => `${node.class_type} (${id}): ${e.message}${e.details ? `: ${e.details}` : ""}`),
  );
}

/** A job that failed while it ran. */
export function problemOfRun(error: ExecutionError | undefined): Problem {
  const message = (error?.exception_message ?? "").trim();
  const type = error?.exception_type ?? "";
  const where = error?.node_type ? `${error.node_type} (${error.node_id ?? "?"})` : "";
  const details = [where, type && `${type}: ${message}`, ...(error?.traceback ?? [])].filter(Boolean).join("\n").trim();
  const reason = message || undefined;
  if (/OutOfMemory/i.test(type) || /out of memory|not enough memory/i.test(message)) {
    return {
      text: "There was not enough memory for this picture. Try a smaller size, or free memory.",
      reason,
      details,
      fields: { width: "Try a smaller size." },
      help: "memory",
    };
  }
  const loading = /Loader/.test(error?.node_type ?? "");
  if (loading && /Lora/i.test(error?.node_type ?? ""))
    return { text: "A LoRA could not be loaded.", reason, details, fields: { loras: "This one could not be loaded." } };
  if (loading)
    return {
      text: "The model could not be loaded.",
      reason: reason ?? "The file may be damaged or of a kind that Fresco does not know.",
      details,
      fields: { model: "This one could not be loaded." },
      help: "models",
    };
  if (/^LoadImage/.test(error?.node_type ?? ""))
    return { text: "The start picture could not be read. Choose it again.", reason, details, fields: { image: "Could not be read." } };
  return { text: "This picture could not be finished.", reason, details, fields: {} };
}
