// The canvas: React Flow over the open graph, its gestures turned into edits of the document.
import {
  applyNodeChanges,
  Background,
  BackgroundVariant,
  getViewportForBounds,
  MiniMap,
  ReactFlow,
  useReactFlow,
  useStoreApi,
  type Connection,
  type Edge,
  type EdgeChange,
  type FinalConnectionState,
  type NodeChange,
  type OnConnectStartParams,
} from "@xyflow/react";
import "@xyflow/react/dist/base.css";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useInfo } from "../state/info";
import { join, joinNewPort, joinNode } from "./actions";
import { typeColour } from "./compat";
import { inType, outType, refusal } from "./connect";
import { disconnect, editGroup, moveNodes } from "./edits";
import { boundsOf, flowEdges, flowNodes, insideGroup, keyFrom, NEW_PORT, slotFrom, type FlowNode } from "./flow";
import { graphAt, rect, type NodeId } from "./format";
import { GroupCard } from "./GroupCard";
import { IoCard } from "./IoCard";
import { TITLE } from "./metrics";
import { NodeCard } from "./NodeCard";
import { scopeOf, theDoc, theScope, useGraph } from "./store";
import css from "./Canvas.module.css";

const nodeTypes = { card: NodeCard, group: GroupCard, io: IoCard };
const isNew = (handle: string | null | undefined): boolean => handle === `o${NEW_PORT}` || keyFrom(handle) === NEW_PORT;

/** Shows the whole graph, or the selection. */
export function useFit(): (ids?: readonly string[], smooth?: boolean) => void {
  const flow = useReactFlow();
  const store = useStoreApi();
  return useCallback(
    (ids, smooth = true) => {
      const box = boundsOf(theDoc(), theScope(), useInfo.getState().info, ids);
      if (!box) return;
      const { width, height, minZoom } = store.getState();
      const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
      const whole = getViewportForBounds(box, width, height, minZoom, 1.1, ids ? 0.3 : 0.06);
      if (!smooth && width < 700 && whole.zoom < 0.6) {
        // On a phone the whole would be too small to read: begin at its left end.
        const zoom = 0.6;
        void flow.setViewport({ x: 16 - box.x * zoom, y: Math.max(16, (height - box.height * zoom) / 2) - box.y * zoom, zoom });
        return;
      }
      void flow.setViewport(whole, { duration: smooth && !reduced ? 200 : 0 });
    },
    [flow, store],
  );
}

function point(e: MouseEvent | TouchEvent): { x: number; y: number } {
  const p = "changedTouches" in e ? e.changedTouches[0] : e;
  return { x: p?.clientX ?? 0, y: p?.clientY ?? 0 };
}

export function Canvas() {
  const info = useInfo((s) => s.info);
  const doc = useGraph((s) => s.history.present);
  const path = useGraph((s) => s.path);
  const opened = useGraph((s) => s.opened);
  const selected = useGraph((s) => s.selected);
  const selectedLinks = useGraph((s) => s.selectedLinks);
  const scope = scopeOf(path);
  const flow = useReactFlow<FlowNode>();
  const fit = useFit();
  const [nodes, setNodes] = useState<FlowNode[]>(() => flowNodes(doc, scope, info, []));
  const carried = useRef<Map<string, { x: number; y: number }> | null>(null);

  useEffect(() => setNodes((old) => flowNodes(doc, scope, info, old)), [doc, scope, info]);
  // Selections made by commands reach the canvas; those made on it come back the same.
  useEffect(() => {
    const wanted = new Set(selected);
    setNodes((old) =>
      old.some((n) => Boolean(n.selected) !== wanted.has(n.id))
        ? old.map((n) => (Boolean(n.selected) === wanted.has(n.id) ? n : { ...n, selected: wanted.has(n.id) }))
        : old,
    );
  }, [selected, doc, scope]);
  useEffect(() => {
    const frame = requestAnimationFrame(() => fit(undefined, false));
    return () => cancelAnimationFrame(frame);
  }, [opened, scope, fit]);

  const links = useMemo(() => new Set(selectedLinks), [selectedLinks]);
  const edges = useMemo(() => flowEdges(doc, scope, info, links), [doc, scope, info, links]);

  const onNodesChange = useCallback((changes: NodeChange<FlowNode>[]) => {
    setNodes((old) => applyNodeChanges(changes, old));
    const picks = changes.filter((c) => c.type === "select");
    if (picks.length > 0) {
      const now = new Set(useGraph.getState().selected);
      for (const p of picks)
        if (p.selected) now.add(p.id);
        else now.delete(p.id);
      useGraph.getState().select([...now], useGraph.getState().selectedLinks);
    }
    // Arrow keys move without dragging; drags are written down when they end.
    const steps = changes.flatMap((c) =>
      c.type === "position" && c.dragging === false && c.position && !carried.current ? [{ id: c.id, ...c.position }] : [],
    );
    if (steps.length > 0) place(steps, "nudge");
  }, []);

  const onEdgesChange = useCallback((changes: EdgeChange<Edge>[]) => {
    const now = new Set(useGraph.getState().selectedLinks);
    for (const c of changes)
      if (c.type === "select") {
        if (c.selected) now.add(c.id);
        else now.delete(c.id);
      }
    useGraph.getState().select(useGraph.getState().selected, [...now]);
  }, []);

  const dragStart = useCallback(
    (_: unknown, node: FlowNode, all: FlowNode[]) => {
      const start = new Map<string, { x: number; y: number }>();
      const moving = all.length > 0 ? all : [node];
      const byId = new Map(flow.getNodes().map((n) => [n.id, n]));
      for (const n of moving) {
        start.set(n.id, n.position);
        if (n.type !== "group") continue;
        for (const id of insideGroup(theDoc(), theScope(), n.data.at, useInfo.getState().info)) {
          const inner = byId.get(id);
          if (inner && !start.has(id)) start.set(id, inner.position);
        }
      }
      carried.current = start;
    },
    [flow],
  );

  /** What lies in a group goes along with it. */
  const drag = useCallback((_: unknown, node: FlowNode, all: FlowNode[]) => {
    const start = carried.current;
    const from = start?.get(node.id);
    if (!start || !from || !all.concat(node).some((n) => n.type === "group")) return;
    const own = new Set(all.map((n) => n.id));
    const [dx, dy] = [node.position.x - from.x, node.position.y - from.y];
    setNodes((old) =>
      old.map((n) => {
        const s = start.get(n.id);
        return s && !own.has(n.id) ? { ...n, position: { x: s.x + dx, y: s.y + dy } } : n;
      }),
    );
  }, []);

  const dragStop = useCallback((_: unknown, node: FlowNode) => {
    const start = carried.current;
    const from = start?.get(node.id);
    carried.current = null;
    if (!start || !from) return;
    const [dx, dy] = [Math.round(node.position.x - from.x), Math.round(node.position.y - from.y)];
    if (dx === 0 && dy === 0) return;
    place([...start].map(([id, s]) => ({ id, x: s.x + dx, y: s.y + dy })));
  }, []);

  const isValid = useCallback((c: Connection | Edge) => {
    if (isNew(c.sourceHandle) || isNew(c.targetHandle)) return !(isNew(c.sourceHandle) && isNew(c.targetHandle)) && c.source !== c.target;
    return (
      refusal(
        theDoc(),
        theScope(),
        { node: c.source, slot: slotFrom(c.sourceHandle) },
        { node: c.target, key: keyFrom(c.targetHandle) },
        useInfo.getState().info,
      ) === null
    );
  }, []);

  const onConnect = useCallback((c: Connection) => {
    const from = { node: realId(c.source), slot: slotFrom(c.sourceHandle) };
    const to = { node: realId(c.target), key: keyFrom(c.targetHandle) };
    if (isNew(c.targetHandle)) joinNewPort({ from });
    else if (isNew(c.sourceHandle)) joinNewPort({ to });
    else join(from, to);
  }, []);

  const onReconnect = useCallback((old: Edge, c: Connection) => {
    reconnected.current = true;
    join({ node: realId(c.source), slot: slotFrom(c.sourceHandle) }, { node: realId(c.target), key: keyFrom(c.targetHandle) }, old.id);
  }, []);
  const reconnected = useRef(false);

  const onConnectStart = useCallback((_: MouseEvent | TouchEvent, p: OnConnectStartParams) => {
    if (!p.nodeId || isNew(p.handleId)) return;
    const i = useInfo.getState().info;
    const dragging =
      p.handleType === "source"
        ? { side: "out" as const, type: outType(theDoc(), theScope(), { node: p.nodeId, slot: slotFrom(p.handleId) }, i) }
        : { side: "in" as const, type: inType(theDoc(), theScope(), { node: p.nodeId, key: keyFrom(p.handleId) }, i) };
    useGraph.setState({ dragging });
  }, []);

  const onConnectEnd = useCallback(
    (e: MouseEvent | TouchEvent, state: FinalConnectionState) => {
      const { dragging } = useGraph.getState();
      useGraph.setState({ dragging: null });
      if (state.isValid || !state.fromNode || !state.fromHandle || isNew(state.fromHandle.id)) return;
      const id = realId(state.fromNode.id);
      const out = state.fromHandle.type === "source";
      const end = out ? { from: { node: id, slot: slotFrom(state.fromHandle.id) } } : { to: { node: id, key: keyFrom(state.fromHandle.id) } };
      const at = point(e);
      const over = document.elementFromPoint(at.x, at.y);
      const card = over?.closest<HTMLElement>(".react-flow__node");
      if (card?.dataset.id && !card.dataset.id.startsWith("g")) {
        if (card.dataset.id !== state.fromNode.id) joinNode(end, realId(card.dataset.id));
        return;
      }
      if (!over?.closest(".react-flow")) return;
      useGraph.setState({
        search: { screen: at, flow: flow.screenToFlowPosition(at), wanted: out ? { from: dragging?.type ?? "*" } : { to: dragging?.type ?? "*" }, ...end },
      });
    },
    [flow],
  );

  const openSearch = (at: { x: number; y: number }) =>
    useGraph.setState({ search: { screen: at, flow: flow.screenToFlowPosition(at), wanted: {} }, menu: null });
  const openMenu = (e: React.MouseEvent | MouseEvent) => {
    e.preventDefault();
    const at = { x: e.clientX, y: e.clientY };
    useGraph.setState({ menu: { screen: at, flow: flow.screenToFlowPosition(at) } });
  };
  return (
    <ReactFlow<FlowNode>
      className={css.canvas}
      nodes={nodes}
      edges={edges}
      nodeTypes={nodeTypes}
      onNodesChange={onNodesChange}
      onEdgesChange={onEdgesChange}
      onNodeDragStart={dragStart}
      onNodeDrag={drag}
      onNodeDragStop={dragStop}
      onSelectionDragStart={(e, all) => all[0] && dragStart(e, all[0], all)}
      onSelectionDrag={(e, all) => all[0] && drag(e, all[0], all)}
      onSelectionDragStop={(e, all) => all[0] && dragStop(e, all[0])}
      isValidConnection={isValid}
      onConnect={onConnect}
      onConnectStart={onConnectStart}
      onConnectEnd={onConnectEnd}
      onReconnectStart={() => (reconnected.current = false)}
      onReconnect={onReconnect}
      onReconnectEnd={(_, edge) => {
        if (!reconnected.current) useGraph.getState().edit((d) => disconnect(d, theScope(), [edge.id]));
      }}
      onPaneContextMenu={openMenu}
      onNodeContextMenu={(e, n) => {
        if (!useGraph.getState().selected.includes(n.id)) useGraph.getState().select([n.id]);
        openMenu(e);
      }}
      onEdgeContextMenu={(e, edge) => {
        useGraph.getState().select([], [edge.id]);
        openMenu(e);
      }}
      onSelectionContextMenu={(e) => openMenu(e)}
      onPaneClick={(e) => e.detail === 2 && openSearch({ x: e.clientX, y: e.clientY })}
      onlyRenderVisibleElements={nodes.length > 60}
      deleteKeyCode={null}
      multiSelectionKeyCode={["Control", "Meta", "Shift"]}
      selectionKeyCode="Shift"
      zoomOnDoubleClick={false}
      elevateNodesOnSelect
      nodeDragThreshold={2}
      connectionRadius={24}
      minZoom={0.08}
      maxZoom={2.5}
      connectionLineStyle={{ strokeWidth: 2.5, stroke: typeColour(useGraph.getState().dragging?.type ?? "*") }}
      aria-label="Graph of the workflow"
    >
      <Background variant={BackgroundVariant.Dots} gap={20} size={1.5} />
      {nodes.length > 3 && (
        <MiniMap
          className={css.map}
          pannable
          zoomable
          ariaLabel="Map of the graph"
          nodeColor={(n) => (n.type === "group" ? "transparent" : "var(--line-strong)")}
          maskColor="var(--shade)"
        />
      )}
    </ReactFlow>
  );
}

/** React Flow has text ids; the file may have numbers. */
function realId(id: string): NodeId {
  const node = graphAt(theDoc(), theScope()).nodes.find((n) => String(n.id) === id);
  if (node) return node.id;
  return /^-?\d+$/.test(id) ? Number(id) : id;
}

/** Writes new places of nodes and groups into the document. */
function place(moves: { id: string; x: number; y: number }[], tag?: string): void {
  const scope = theScope();
  useGraph.getState().edit((doc) => {
    let out = moveNodes(
      doc,
      scope,
      moves.filter((m) => !m.id.startsWith("g")).map((m) => ({ id: m.id, x: m.x, y: m.id === "-10" || m.id === "-20" ? m.y : m.y + TITLE })),
    );
    for (const m of moves) {
      if (!m.id.startsWith("g")) continue;
      out = editGroup(out, scope, Number(m.id.slice(1)), (g) => {
        const [, , w, h] = rect(g.bounding, [0, 0, 200, 200]);
        return { ...g, bounding: [m.x, m.y, w, h] };
      });
    }
    return out;
  }, tag);
}
