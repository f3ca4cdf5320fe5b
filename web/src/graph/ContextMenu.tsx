// The menu under the pointer: what can be done with what was clicked.
import { useEffect, useRef } from "react";
import { Icon } from "../ui";
import { COLOURS, command, type Tools } from "./commands";
import { colourSelected } from "./actions";
import { selection, useGraph } from "./store";
import css from "./ContextMenu.module.css";

const NODE = ["rename", "inspect", "copy", "duplicate", "mute", "bypass", "fold", "group", "gather", "unpack", "enter", "alignLeft", "alignTop", "delete"];
const PANE = ["add", "paste", "undo", "redo", "selectAll", "arrange", "fit", "run", "commands"];

export function ContextMenu({ tools }: { tools: Tools }) {
  const menu = useGraph((s) => s.menu);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!menu) return;
    root.current?.querySelector<HTMLElement>("button:not(:disabled)")?.focus();
    const outside = (e: PointerEvent) => {
      if (!root.current?.contains(e.target as Node)) useGraph.setState({ menu: null });
    };
    document.addEventListener("pointerdown", outside, true);
    return () => document.removeEventListener("pointerdown", outside, true);
  }, [menu]);
  if (!menu) return null;
  const chosen = selection();
  const onNode = chosen.ids.length + chosen.groups.length > 0;
  const ids = onNode ? NODE : chosen.links.length > 0 ? ["delete"] : PANE;
  const items = ids.map(command).filter((c) => c.enabled?.() ?? true);
  const close = () => useGraph.setState({ menu: null });
  const height = items.length * 34 + (onNode ? 60 : 16);
  return (
    <div
      ref={root}
      className={css.menu}
      role="menu"
      aria-label="Actions"
      style={{ left: Math.min(menu.screen.x, innerWidth - 300), top: Math.max(8, Math.min(menu.screen.y, innerHeight - height)) }}
      onKeyDown={(e) => {
        e.stopPropagation();
        const all = [...(root.current?.querySelectorAll<HTMLButtonElement>("button") ?? [])];
        const at = all.indexOf(document.activeElement as HTMLButtonElement);
        if (e.key === "Escape") close();
        else if (e.key === "ArrowDown") all[(at + 1) % all.length]?.focus();
        else if (e.key === "ArrowUp") all[(at - 1 + all.length) % all.length]?.focus();
        else return;
        e.preventDefault();
      }}
    >
      {items.map((c) => (
        <button
          key={c.id}
          type="button"
          role="menuitem"
          onClick={() => {
            close();
            if (c.id === "add") useGraph.setState({ search: { ...menu, wanted: {} } });
            else void c.run(tools);
          }}
        >
          {c.icon ? <Icon name={c.icon} size={16} /> : <span className={css.gap} />}
          <span>{c.label.replace("…", "")}</span>
          {c.keys && <kbd>{c.keys}</kbd>}
        </button>
      ))}
      {onNode && (
        <div className={css.colours} role="group" aria-label="Colour">
          {COLOURS.map((c) => (
            <button
              key={c.label}
              type="button"
              role="menuitem"
              aria-label={c.label}
              title={c.label}
              style={{ background: c.value?.bgcolor }}
              onClick={() => {
                close();
                colourSelected(c.value);
              }}
            >
              {c.value ? "" : "×"}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
