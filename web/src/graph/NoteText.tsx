// A note on the canvas: read as Markdown, written as text.
import { useEffect, useRef, useState } from "react";
import { Icon, Markdown } from "../ui";
import type { Row } from "./rows";
import { useGraph } from "./store";
import css from "./NoteText.module.css";

export function NoteText({ row, node, title }: { row: Row; node: string; title: string }) {
  const text = typeof row.value === "string" ? row.value : "";
  const [writing, setWriting] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (writing) area.current?.focus();
  }, [writing]);
  if (writing || text.trim() === "") {
    return (
      <textarea
        ref={area}
        className={`${css.area} nowheel nodrag`}
        aria-label={row.label}
        placeholder="Write a note. Markdown is formatted."
        value={text}
        spellCheck={false}
        onFocus={() => setWriting(true)}
        onBlur={() => setWriting(false)}
        onChange={(e) => useGraph.getState().edit((doc) => row.set(doc, e.target.value), `${node}/${row.key}`)}
        onKeyDown={(e) => {
          if (e.key !== "Escape") return;
          e.stopPropagation();
          setWriting(false);
        }}
      />
    );
  }
  return (
    <div
      className={`${css.note} nowheel nodrag nopan`}
      onDoubleClick={(e) => {
        e.stopPropagation();
        if (!(e.target as Element).closest("a")) setWriting(true);
      }}
    >
      <Markdown text={text} />
      <button type="button" className={css.write} aria-label={`Edit ${title}`} title="Edit (or double-click)" onClick={() => setWriting(true)}>
        <Icon name="edit" size={14} />
      </button>
    </div>
  );
}
