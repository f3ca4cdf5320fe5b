// Queues the document and keeps what the server answers about its nodes.
import { ApiError, inspectWorkflow, queuePrompt } from "../api/client";
import type { Inspection, NodeError, UiWorkflow } from "../api/types";
import { onEvent } from "../state/live";
import { useInfo } from "../state/info";
import { settleFields, toast } from "../ui";
import { advance } from "./controls";
import type { Doc } from "./format";
import type { Problem } from "./store";
import { theDoc, useGraph } from "./store";

/** Problems by node, from the answer to a refused prompt. */
export function problemsOf(errors: Record<string, NodeError>): Record<string, Problem> {
  const out: Record<string, Problem> = {};
  for (const [id, error] of Object.entries(errors)) {
    const inputs: Record<string, string> = {};
    const lines: string[] = [];
    for (const e of error.errors) {
      const text = e.details && e.details !== e.message ? `${e.message}: ${e.details}` : e.message;
      const name = e.extra_info?.input_name;
      if (typeof name === "string") inputs[name] = text;
      lines.push(text);
    }
    out[id] = { message: lines.join("\n") || "This node cannot run.", inputs };
  }
  return out;
}

const missingText = (i: Inspection): string => {
  const names = [...new Set(i.missing.nodes.map((n) => n.class_type))];
  return names.length > 0 ? `This server has no ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}.` : "";
};

/** Converts and queues the document some times; seeds go on after each. */
export async function queueDoc(count: number, front = false): Promise<void> {
  settleFields();
  useGraph.setState({ errors: {} });
  for (let i = 0; i < count; i++) {
    const doc = theDoc();
    const info = useInfo.getState().info;
    try {
      const inspection = await inspectWorkflow(doc);
      const missing = missingText(inspection);
      if (missing) toast(missing, "warn");
      const { prompt_id, nodeErrors } = await queuePrompt(inspection.prompt, { workflow: doc as unknown as UiWorkflow, front });
      if (nodeErrors && i === 0) leftOut(nodeErrors);
      useGraph.setState((s) => ({ jobs: [...s.jobs.slice(-99), prompt_id] }));
      rememberJobs(useGraph.getState().jobs);
      for (const told of early.get(prompt_id) ?? []) hear(told.type, told.data);
      early.clear();
      if (info) useGraph.getState().edit((d) => advance(d, info, Math.random), "after-run");
    } catch (e) {
      fail(e);
      return;
    }
  }
  toast(count > 1 ? `${count} runs queued.` : "Queued.", "good", { duration: 2000 });
}

/** The rest runs; what does not is marked. */
function leftOut(nodeErrors: Record<string, NodeError>): void {
  const errors = problemsOf(nodeErrors);
  useGraph.setState({ errors });
  toast("A part of this workflow cannot run and is left out: marked in red.", "warn");
}

function fail(e: unknown): void {
  if (e instanceof ApiError) {
    const errors = e.nodeErrors ? problemsOf(e.nodeErrors) : {};
    useGraph.setState({ errors });
    const count = Object.keys(errors).length;
    const where = count > 0 ? ` ${count === 1 ? "One node needs" : `${count} nodes need`} a look: marked in red.` : e.details ? ` ${e.details}` : "";
    const message = count > 0 ? "This workflow cannot run yet." : /[.!?]$/.test(e.message) ? e.message : `${e.message}.`;
    toast(`${message}${where}`, "bad");
  } else {
    toast(e instanceof Error ? e.message : String(e), "bad");
  }
}

/** The document as a prompt, for export. */
export async function promptOf(doc: Doc): Promise<Inspection> {
  return inspectWorkflow(doc);
}

const JOBS = "fresco.graph.jobs";

function rememberJobs(jobs: string[]): void {
  try {
    sessionStorage.setItem(JOBS, JSON.stringify(jobs.slice(-50)));
  } catch {
    // Only progress on nodes after a reload is lost.
  }
}

function rememberedJobs(): string[] {
  try {
    const list: unknown = JSON.parse(sessionStorage.getItem(JOBS) ?? "[]");
    return Array.isArray(list) ? list.map(String) : [];
  } catch {
    return [];
  }
}

interface Told {
  prompt_id?: string;
  node?: string;
  display_node?: string;
  node_id?: string;
  output?: Record<string, unknown>;
  exception_message?: string;
  exception_type?: string;
}

/** What was told of prompts whose number this page does not know yet: a short run can end before its answer is here. */
const early = new Map<string, { type: string; data: Told }[]>();
const EARLY = 50;

function hear(type: string, data: Told): void {
  if (data.prompt_id === undefined) return;
  if (!useGraph.getState().jobs.includes(data.prompt_id)) {
    early.set(data.prompt_id, [...(early.get(data.prompt_id) ?? []), { type, data }]);
    const oldest = early.keys().next().value;
    if (early.size > EARLY && oldest !== undefined) early.delete(oldest);
    return;
  }
  if (type === "executed") {
    const id = data.display_node ?? data.node;
    if (id && data.output) useGraph.setState((s) => ({ results: { ...s.results, [id]: data.output ?? {} } }));
  } else {
    const message = (data.exception_message ?? "The node failed.").trim();
    if (data.node_id) useGraph.setState((s) => ({ errors: { ...s.errors, [String(data.node_id)]: { message, inputs: {} } } }));
    toast(message, "bad");
  }
}

/** Listens for results and errors of the prompts queued here. */
export function startRunEvents(): () => void {
  useGraph.setState((s) => ({ jobs: s.jobs.length > 0 ? s.jobs : rememberedJobs() }));
  const stops = ["executed", "execution_error"].map((type) => onEvent(type, (data: Told) => hear(type, data)));
  return () => stops.forEach((stop) => stop());
}
