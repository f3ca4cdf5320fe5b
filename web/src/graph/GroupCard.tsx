// A group: a coloured frame with a title; what lies in it moves with it.
import { NodeResizer, type NodeProps } from "@xyflow/react";
import { memo, useState } from "react";
import { editGroup } from "./edits";
import type { GroupNode } from "./flow";
import { useGraph } from "./store";
import css from "./GroupCard.module.css";

export const GroupCard = memo(function GroupCard({ data, selected }: NodeProps<GroupNode>) {
  const { group, at, scope } = data;
  const [draft, setDraft] = useState<string | null>(null);
  const colour = typeof group.color === "string" && /^#[0-9a-f]{3,8}$/i.test(group.color) ? group.color : "#3f789e";
  const edit = useGraph.getState().edit;
  const commit = () => {
    if (draft !== null && draft !== group.title) edit((doc) => editGroup(doc, scope, at, (g) => ({ ...g, title: draft })));
    setDraft(null);
  };
  return (
    <div
      className={`${css.group} ${selected ? css.selected : ""}`}
      style={{ borderColor: colour, background: `color-mix(in srgb, ${colour} 14%, transparent)` }}
    >
      <NodeResizer
        isVisible={selected ?? false}
        minWidth={100}
        minHeight={60}
        onResizeEnd={(_, p) => edit((doc) => editGroup(doc, scope, at, (g) => ({ ...g, bounding: [p.x, p.y, p.width, p.height] })))}
      />
      <div
        className={`${css.title} group-title`}
        style={{ background: `color-mix(in srgb, ${colour} 35%, transparent)` }}
        onDoubleClick={(e) => {
          e.stopPropagation();
          setDraft(group.title ?? "");
        }}
      >
        {draft === null ? (
          group.title || "Group"
        ) : (
          <input
            autoFocus
            className="nodrag"
            aria-label="Title of the group"
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
      </div>
    </div>
  );
});
