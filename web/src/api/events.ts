// What the server tells about jobs, read once: everything behind this file sees one of these and no raw data.
import type { NodeOutput, NodeProgress } from "./types";

/** A job is named by its id; old servers leave it out where the running one is meant. */
export type ServerEvent =
  | { type: "status" }
  | { type: "execution_start"; job?: string; timestamp?: number }
  | { type: "execution_cached"; job?: string; nodes: string[] }
  /** The node at work as the graph shows it; null at the end of the job. */
  | { type: "executing"; job?: string; node: string | null }
  | { type: "progress"; job?: string; node?: string; value: number; max: number }
  | { type: "progress_state"; job?: string; nodes: NodeProgress[] }
  | { type: "executed"; job?: string; node: string; output: NodeOutput | null }
  | { type: "execution_success"; job?: string }
  | { type: "execution_interrupted"; job?: string }
  | { type: "execution_error"; job?: string; node?: string; message: string; kind?: string }
  | { type: "fresco_queue"; paused?: boolean }
  | { type: "memory_event" };

type Fields = Record<string, unknown>;
const fields = (raw: unknown): Fields => (raw && typeof raw === "object" && !Array.isArray(raw) ? (raw as Fields) : {});
const text = (raw: unknown): string | undefined => (typeof raw === "string" ? raw : undefined);
const id = (raw: unknown): string | undefined => (typeof raw === "number" ? String(raw) : text(raw));
const number = (raw: unknown): number | undefined => (typeof raw === "number" ? raw : undefined);

/** The event, or null where the page has no use for it or it is broken. */
export function readEvent(type: string, raw: unknown): ServerEvent | null {
  const data = fields(raw);
  const job = text(data.prompt_id);
  switch (type) {
    case "status":
    case "memory_event":
      return { type };
    case "execution_start":
      return { type, job, timestamp: number(data.timestamp) };
    case "execution_cached":
      return { type, job, nodes: Array.isArray(data.nodes) ? data.nodes.map(String) : [] };
    case "executing": {
      const node = data.node === null ? null : (id(data.display_node) ?? id(data.node));
      return node === undefined ? null : { type, job, node };
    }
    case "progress":
      return { type, job, node: id(data.node), value: number(data.value) ?? 0, max: number(data.max) ?? 0 };
    case "progress_state":
      return { type, job, nodes: Object.values(fields(data.nodes)) as NodeProgress[] };
    case "executed": {
      const node = id(data.display_node) ?? id(data.node);
      return node === undefined ? null : { type, job, node, output: data.output ? fields(data.output) : null };
    }
    case "execution_success":
    case "execution_interrupted":
      return { type, job };
    case "execution_error":
      return { type, job, node: id(data.node_id), message: (text(data.exception_message) ?? "The node failed.").trim(), kind: text(data.exception_type) };
    case "fresco_queue":
      return { type, paused: typeof data.paused === "boolean" ? data.paused : undefined };
    default:
      return null;
  }
}

/** As `readEvent`, from the text of a message. */
export function readEventText(type: string, json: string): ServerEvent | null {
  try {
    return readEvent(type, JSON.parse(json));
  } catch {
    return null;
  }
}
