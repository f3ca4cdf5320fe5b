// What the events of a running job mean for its progress; pure, so that it can be tested event by event.
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

interface EventData {
  prompt_id?: string;
  node?: string | null;
  display_node?: string;
  value?: number;
  max?: number;
  nodes?: unknown;
  timestamp?: number;
}

/** The running job after an event; `null` when it has ended. Events of unknown kinds change nothing. */
export function reduceEvent(running: Running | null, type: string, raw: unknown, now: number): Running | null {
  const data = (raw ?? {}) as EventData;
  const id = data.prompt_id ?? running?.id;
  if (!id) return running;
  const mine = running?.id === id;
  // A late event of a job that has ended must not bring it back to life.
  const base = () => (mine ? running : startRunning(id, now));
  switch (type) {
    case "execution_start": {
      const start = { startedAt: data.timestamp ?? now, begun: data.timestamp };
      // Told late, of a run whose progress is known already, or anew, of a job that was started again.
      if (mine && (running.begun === undefined || running.begun === data.timestamp)) return { ...running, ...start, startedAt: data.timestamp ?? running.startedAt };
      return { ...startRunning(id, now), ...start };
    }
    case "execution_cached": {
      const perNode = { ...base().perNode };
      for (const node of Array.isArray(data.nodes) ? data.nodes : []) perNode[String(node)] = { value: 1, max: 1, state: "finished" };
      return { ...base(), perNode };
    }
    case "executing": {
      if (data.node === null) return mine ? null : running;
      const node = data.display_node ?? data.node;
      if (!node) return running;
      const known = base().perNode[node];
      const fresh = base().node !== node;
      return { ...base(), node, value: fresh ? (known?.value ?? 0) : base().value, max: fresh ? (known?.max ?? 0) : base().max };
    }
    case "progress":
      return {
        ...base(),
        node: data.node ?? base().node,
        value: data.value ?? 0,
        max: data.max ?? 0,
      };
    case "progress_state": {
      const perNode = { ...base().perNode };
      let current: NodeProgress | undefined;
      for (const entry of Object.values((data.nodes ?? {}) as Record<string, NodeProgress>)) {
        const shown = entry.display_node_id ?? entry.node_id;
        if (!shown) continue;
        // Inner nodes of a sub-graph speak for the node that is shown, unless it speaks for itself.
        if (shown === entry.node_id || !perNode[shown] || entry.state === "running") {
          perNode[shown] = { value: entry.value, max: entry.max, state: entry.state };
        }
        if (entry.state === "running") current = entry;
      }
      if (!current) return { ...base(), perNode };
      return { ...base(), perNode, node: current.display_node_id ?? current.node_id, value: current.value, max: current.max };
    }
    case "execution_success":
    case "execution_interrupted":
      return mine ? null : running;
    case "execution_error":
      // A blocked branch is told the same way, but the prompt goes on.
      return mine && (raw as { exception_type?: string }).exception_type !== "ExecutionBlocked" ? null : running;
    default:
      return running;
  }
}

/** Seconds left at the present pace of the node at work, or null where nothing can be said yet. */
export function secondsLeft(marks: { value: number; at: number }[], max: number): number | null {
  const first = marks[0];
  const last = marks[marks.length - 1];
  if (!first || !last || last.value <= first.value || last.at <= first.at) return null;
  const perUnit = (last.at - first.at) / (last.value - first.value);
  return Math.max(0, ((max - last.value) * perUnit) / 1000);
}
