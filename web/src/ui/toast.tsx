// Short messages at the edge of the page; some offer an action such as Undo.
import { useEffect, useRef } from "react";
import { create } from "zustand";
import { Button, IconButton } from "./Button";
import { Icon, type IconName } from "./Icon";
import css from "./toast.module.css";

export type ToastKind = "info" | "good" | "warn" | "bad";

export interface ToastOptions {
  action?: { label: string; onSelect(): void };
  /** Milliseconds; 0 stays until it is closed. */
  duration?: number;
  /** Called when it goes without its action, e.g. to do what can no longer be undone. */
  onGone?(): void;
}

interface Toast extends ToastOptions {
  id: number;
  text: string;
  kind: ToastKind;
}

const useToasts = create<{ list: Toast[] }>()(() => ({ list: [] }));
let next = 1;

function remove(id: number, acted: boolean) {
  const found = useToasts.getState().list.find((t) => t.id === id);
  if (!found) return;
  useToasts.setState((s) => ({ list: s.list.filter((t) => t.id !== id) }));
  if (!acted) found.onGone?.();
}

/** Shows a message. Returns what takes it away again. */
export function toast(text: string, kind: ToastKind = "info", options: ToastOptions = {}): () => void {
  const id = next++;
  useToasts.setState((s) => {
    const kept = s.list.slice(-3);
    // The oldest make room; what they were to do when gone is done now.
    s.list.slice(0, -3).forEach((t) => t.onGone?.());
    return { list: [...kept, { id, text, kind, ...options }] };
  });
  return () => remove(id, true);
}

/** Says that something was done and lets it be undone; `commit` runs when that chance is over. */
export function toastUndo(text: string, undo: () => void, commit?: () => void): void {
  toast(text, "info", { action: { label: "Undo", onSelect: undo }, onGone: commit, duration: 8000 });
}

const ICONS: Record<ToastKind, IconName> = { info: "info", good: "check", warn: "warning", bad: "warning" };

function One({ item }: { item: Toast }) {
  const duration = item.duration ?? (item.kind === "bad" ? 10000 : item.action ? 8000 : 5000);
  useEffect(() => {
    if (!duration) return;
    const timer = setTimeout(() => remove(item.id, false), duration);
    return () => clearTimeout(timer);
  }, [item.id, duration]);
  return (
    <div className={`${css.toast} ${css[item.kind]}`} role={item.kind === "bad" ? "alert" : "status"}>
      <Icon name={ICONS[item.kind]} className={css.icon} />
      <span className={css.text}>{item.text}</span>
      {item.action && (
        <Button
          size="s"
          variant="quiet"
          className={css.action}
          onClick={() => {
            remove(item.id, true);
            item.action?.onSelect();
          }}
        >
          {item.action.label}
        </Button>
      )}
      <IconButton size="s" label="Dismiss" icon="close" onClick={() => remove(item.id, false)} />
    </div>
  );
}

export function Toasts() {
  const list = useToasts((s) => s.list);
  // What waits for its undo time must not be lost when the page is left.
  useEffect(() => {
    const leave = () => useToasts.getState().list.forEach((t) => t.onGone?.());
    addEventListener("pagehide", leave);
    return () => removeEventListener("pagehide", leave);
  }, []);
  // In the top layer and raised with each message: otherwise they would lie under the shade of an open window.
  const stack = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = stack.current;
    if (!element?.showPopover) return;
    if (element.matches(":popover-open")) element.hidePopover();
    if (list.length > 0) element.showPopover();
  }, [list]);
  return (
    <div ref={stack} popover="manual" className={css.stack} aria-live="polite">
      {list.map((t) => (
        <One key={t.id} item={t} />
      ))}
    </div>
  );
}
