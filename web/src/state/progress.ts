// What the events of a running job mean for its progress; pure, so that it can be tested event by event.
import type { ServerEvent } from "../api/events";
import type { NodeProgress } from "../api/types";

export interface NodeState {
  value: number;
  max: number;
  state: NodeProgress["state"];
}

export interface Running {
  id: string;
  /** The node at work, as the graph shows it. */
  node?: string;
  /** Progress of that node. */
  value: number;
  max: number;
  /** Milliseconds since 1970; when this page learned of it, until the server tells. */
  startedAt: number;
  /** The start the server told. Another one is another run of the same job, which begins anew. */
  begun?: number;
  perNode: Record<string, NodeState>;
}

export function startRunning(id: string, startedAt: number): Running {
  return { id, value: 0, max: 0, startedAt, perNode: {} };
}

/** The running job after an event; `null` when it has ended. Events that are about no job change nothing. */
export function reduceEvent(running: Running | null, event: ServerEvent, now: number): Running | null {
  const id = ("job" in event ? event.job : undefined) ?? running?.id;
  if (!id) return running;
  const mine = running?.id === id;
  // A late event of a job that has ended must not bring it back to life.
  const base = mine ? running : startRunning(id, now);
  switch (event.type) {
    case "execution_start": {
      const { timestamp } = event;
      // Told late, of a run whose progress is known already, or anew, of a job that was started again.
      if (mine && (running.begun === undefined || running.begun === timestamp))
        return { ...running, begun: timestamp, startedAt: timestamp ?? running.startedAt };
      return { ...startRunning(id, timestamp ?? now), begun: timestamp };
    }
    case "execution_cached": {
      const perNode = { ...base.perNode };
      for (const node of event.nodes) perNode[node] = { value: 1, max: 1, state: "finished" };
      return { ...base, perNode };
    }
    case "executing": {
      const { node } = event;
      if (node === null) return mine ? null : running;
      if (base.node === node) return { ...base };
      const known = base.perNode[node];
      return { ...base, node, value: known?.value ?? 0, max: known?.max ?? 0 };
    }
    case "progress":
      return { ...base, node: event.node ?? base.node, value: event.value, max: event.max };
    case "progress_state":
      return withNodes(base, event.nodes);
    case "execution_success":
    case "execution_interrupted":
      return mine ? null : running;
    case "execution_error":
      // A blocked branch is told the same way, but the prompt goes on.
      return mine && event.kind !== "ExecutionBlocked" ? null : running;
    default:
      return running;
  }
}

function withNodes(base: Running, nodes: NodeProgress[]): Running {
  const perNode = { ...base.perNode };
  let current: NodeProgress | undefined;
  for (const entry of nodes) {
    const shown = entry.display_node_id ?? entry.node_id;
    if (!shown) continue;
    // Inner nodes of a sub-graph speak for the node that is shown, unless it speaks for itself.
    if (shown === entry.node_id || !perNode[shown] || entry.state === "running") {
      perNode[shown] = { value: entry.value, max: entry.max, state: entry.state };
    }
    if (entry.state === "running") current = entry;
  }
  if (!current) return { ...base, perNode };
  return { ...base, perNode, node: current.display_node_id ?? current.node_id, value: current.value, max: current.max };
}

/** Seconds left at the present pace of the node at work, or null where nothing can be said yet. */
export function secondsLeft(marks: { value: number; at: number }[], max: number): number | null {
  const first = marks[0];
  const last = marks[marks.length - 1];
  if (!first || !last || last.value <= first.value || last.at <= first.at) return null;
  const perUnit = (last.at - first.at) / (last.value - first.value);
  return Math.max(0, ((max - last.value) * perUnit) / 1000);
}
