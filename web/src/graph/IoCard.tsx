// The two ends of a sub-graph inside it: its inputs on the left, its outputs on the right, and a free place for a new one.
import { Handle, Position, useUpdateNodeInternals, type NodeProps } from "@xyflow/react";
import { memo, useEffect, useRef, useState } from "react";
import { Icon } from "../ui";
import { typeColour, typeName } from "./compat";
import type { IoNode } from "./flow";
import { inHandle, NEW_PORT, outHandle } from "./flow";
import type { Port } from "./format";
import { typeText } from "./format";
import { removePort, renamePort } from "./subgraph";
import { useGraph } from "./store";
import css from "./IoCard.module.css";

function PortRow({ port, at, side, scope }: { port: Port; at: number; side: "inputs" | "outputs"; scope: string }) {
  const [draft, setDraft] = useState<string | null>(null);
  const edit = useGraph.getState().edit;
  const name = port.label ?? port.name;
  const type = typeText(port.type);
  const commit = () => {
    if (draft?.trim() && draft !== name) edit((doc) => renamePort(doc, scope, side, at, draft.trim()));
    setDraft(null);
  };
  return (
    <li
      onDoubleClick={(e) => {
        e.stopPropagation();
        setDraft(name);
      }}
    >
      {draft === null ? (
        <span title={`${name}: ${typeName(type)}`}>{name}</span>
      ) : (
        <input
          autoFocus
          className="nodrag"
          aria-label="Name"
          value={draft}
          onChange={(e) => setDraft(e.target.value)}
          onBlur={commit}
          onKeyDown={(e) => {
            e.stopPropagation();
            if (e.key === "Enter") commit();
            if (e.key === "Escape") setDraft(null);
          }}
        />
      )}
      <button type="button" className="nodrag" aria-label={`Remove ${name}`} title="Remove" onClick={() => edit((doc) => removePort(doc, scope, side, at))}>
        <Icon name="close" size={12} />
      </button>
      <Handle
        type={side === "inputs" ? "source" : "target"}
        position={side === "inputs" ? Position.Right : Position.Left}
        id={side === "inputs" ? outHandle(at) : inHandle(String(at))}
        className={css.socket}
        style={{ borderColor: typeColour(type), background: (port.linkIds ?? []).length > 0 ? typeColour(type) : undefined }}
        role="img"
        aria-label={`${name}, ${typeName(type)}`}
      />
    </li>
  );
}

export const IoCard = memo(function IoCard({ id, data, selected }: NodeProps<IoNode>) {
  const { side, ports, scope } = data;
  const update = useUpdateNodeInternals();
  const measured = useRef(ports);
  useEffect(() => {
    if (measured.current === ports) return;
    measured.current = ports;
    update(id);
  }, [id, ports, update]);
  return (
    <div className={`${css.io} ${css[side]} ${selected ? css.selected : ""}`}>
      <h3>{side === "inputs" ? "Inputs" : "Outputs"}</h3>
      <ul>
        {ports.map((port, at) => (
          <PortRow key={port.id ?? port.name} port={port} at={at} side={side} scope={scope} />
        ))}
        <li className={css.new}>
          <span>new</span>
          <Handle
            type={side === "inputs" ? "source" : "target"}
            position={side === "inputs" ? Position.Right : Position.Left}
            id={side === "inputs" ? `o${NEW_PORT}` : inHandle(NEW_PORT)}
            className={css.socket}
            role="img"
            aria-label={`New ${side === "inputs" ? "input" : "output"}: connect something here`}
          />
        </li>
      </ul>
    </div>
  );
});
