// Queues the document and keeps what the server answers about its nodes.
import { ApiError, inspectWorkflow, queuePrompt } from "../api/client";
import type { ServerEvent } from "../api/events";
import type { Inspection, NodeError, NodeErrorReason, NodeOutput, UiWorkflow } from "../api/types";
import { jobDetails, onEvent } from "../state/live";
import { useInfo } from "../state/info";
import { settleFields, toast } from "../ui";
import { advance } from "./controls";
import type { Doc } from "./format";
import { lacksOf } from "./lacks";
import type { Problem } from "./store";
import { theDoc, useGraph } from "./store";

/** What is wrong with an input, as a sentence; `lack` is what is known to be missing there. */
function reasonText(e: NodeErrorReason, lack: string | undefined): string {
  if (e.type === "value_not_in_list") {
    if (lack) return lack;
    const { input_name, received_value } = e.extra_info ?? {};
    // The server's own words list every choice there is.
    return `“${String(received_value ?? "")}” is not one of the choices of ${String(input_name ?? "this input")}. Choose another one.`;
  }
  return e.details && e.details !== e.message ? `${e.message}: ${e.details}` : e.message;
}

/** Problems by node, from the answer to a refused prompt; `lacking` is what the workflow needs and is not here. */
export function problemsOf(errors: Record<string, NodeError>, lacking: Record<string, Problem> = {}): Record<string, Problem> {
  const out: Record<string, Problem> = {};
  for (const [id, error] of Object.entries(errors)) {
    const inputs: Record<string, string> = {};
    const lines: string[] = [];
    for (const e of error.errors) {
      const name = e.extra_info?.input_name;
      const text = reasonText(e, typeof name === "string" ? lacking[id]?.inputs[name] : undefined);
      if (typeof name === "string") inputs[name] = text;
      lines.push(text);
    }
    out[id] = { message: lines.join("\n") || "This node cannot run.", inputs, link: lacking[id]?.link, instead: lacking[id]?.instead };
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
    let lacking: Record<string, Problem> = {};
    try {
      const inspection = await inspectWorkflow(doc);
      const missing = missingText(inspection);
      if (missing) toast(missing, "warn");
      lacking = lacksOf(inspection.missing);
      const { prompt_id, nodeErrors } = await queuePrompt(inspection.prompt, { workflow: doc as unknown as UiWorkflow, front });
      if (nodeErrors && i === 0) leftOut(nodeErrors, lacking);
      useGraph.setState((s) => ({ jobs: [...s.jobs.slice(-99), prompt_id] }));
      rememberJobs(useGraph.getState().jobs);
      for (const told of early.get(prompt_id) ?? []) hear(told);
      early.clear();
      if (info) useGraph.getState().edit((d) => advance(d, info, Math.random), "after-run");
    } catch (e) {
      fail(e, lacking);
      return;
    }
  }
  toast(count > 1 ? `${count} runs queued.` : "Queued.", "good", { duration: 2000 });
}

/** The rest runs; what does not is marked. */
function leftOut(nodeErrors: Record<string, NodeError>, lacking: Record<string, Problem>): void {
  const errors = problemsOf(nodeErrors, lacking);
  useGraph.setState({ errors });
  toast("Part of this workflow cannot run and was left out. It is marked in red.", "warn");
}

function fail(e: unknown, lacking: Record<string, Problem>): void {
  if (e instanceof ApiError) {
    const errors = e.nodeErrors ? problemsOf(e.nodeErrors, lacking) : {};
    useGraph.setState({ errors });
    const count = Object.keys(errors).length;
    const where =
      count > 0
        ? count === 1
          ? " One node needs attention. It is marked in red."
          : ` ${count} nodes need attention. They are marked in red.`
        : e.details
          ? ` ${e.details}`
          : "";
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

/** Which runs belong to the open document. */
export function rememberJobs(jobs: string[]): void {
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

type NodeEvent = Extract<ServerEvent, { type: "executed" | "execution_error" }>;

/** What was told of prompts whose number this page does not know yet: a short run can end before its answer is here. */
const early = new Map<string, NodeEvent[]>();
const EARLY = 50;

function hear(event: NodeEvent): void {
  const { job } = event;
  if (job === undefined) return;
  if (!useGraph.getState().jobs.includes(job)) {
    early.set(job, [...(early.get(job) ?? []), event]);
    const oldest = early.keys().next().value;
    if (early.size > EARLY && oldest !== undefined) early.delete(oldest);
    return;
  }
  if (event.type === "executed") {
    const { node, output } = event;
    if (!output) return;
    source.set(node, job);
    useGraph.setState((s) => ({ results: { ...s.results, [node]: output } }));
  } else {
    const { node, message } = event;
    if (node) useGraph.setState((s) => ({ errors: { ...s.errors, [node]: { message, inputs: {} } } }));
    toast(message, "bad");
  }
}

/** Which run a node's result came from. */
const source = new Map<string, string>();

/** Brings in what runs of this page left while nobody listened: over a reload, or while another view was open. */
async function catchUp(): Promise<void> {
  const { jobs, opened } = useGraph.getState();
  for (const id of jobs.slice(-CAUGHT_UP)) {
    const details = await jobDetails(id).catch(() => null);
    if (useGraph.getState().opened !== opened) return;
    // What came from a later run stays.
    const missed = Object.entries(details?.outputs ?? {}).filter(([node]) => jobs.indexOf(source.get(node) ?? "") < jobs.indexOf(id));
    if (missed.length === 0) continue;
    for (const [node] of missed) source.set(node, id);
    useGraph.setState((s) => ({ results: { ...s.results, ...(Object.fromEntries(missed) as Record<string, NodeOutput>) } }));
  }
}

/** So many of the last runs are asked for what they left. */
const CAUGHT_UP = 3;

/** Listens for results and errors of the prompts queued here. */
export function startRunEvents(): () => void {
  useGraph.setState((s) => ({ jobs: s.jobs.length > 0 ? s.jobs : rememberedJobs() }));
  void catchUp();
  const stops = [onEvent("executed", hear), onEvent("execution_error", hear)];
  return () => {
    for (const stop of stops) stop();
  };
}
