// A field that narrows down a list: the keys that walk it, and what assistive technology is told. Every such field of the page
// is made with this; how the list looks and where it lies is the caller's.
import { type KeyboardEvent, type RefObject, useEffect, useId, useRef, useState } from "react";

export interface ComboboxSetup<T> {
  /** What the list shows now. */
  found: readonly T[];
  open: boolean;
  /** Where the mark starts. */
  start?: number;
  /** The marked one was chosen; undefined where nothing is found. */
  take(item: T | undefined): void;
  close(): void;
  /** The arrow down was pressed while it is closed. */
  show?(): void;
  /** It lies over the page and owns the keyboard: Tab closes it, and no key goes further. */
  over?: boolean;
}

export interface Combobox {
  /** The marked one. */
  at: number;
  mark(at: number): void;
  list: RefObject<HTMLUListElement | null>;
  field: {
    role: "combobox";
    "aria-expanded": boolean;
    "aria-controls": string;
    "aria-autocomplete": "list";
    "aria-activedescendant": string | undefined;
    autoComplete: "off";
    spellCheck: false;
    onKeyDown(e: KeyboardEvent): void;
  };
  listbox: { role: "listbox"; id: string };
  option(at: number): { role: "option"; id: string };
}

export function useCombobox<T>({ found, open, start = 0, take, close, show, over = false }: ComboboxSetup<T>): Combobox {
  const id = useId();
  const list = useRef<HTMLUListElement>(null);
  const [at, mark] = useState(start);
  // Hidden options have no place to be scrolled to, so it does no harm while closed.
  useEffect(() => {
    list.current?.children[at]?.scrollIntoView({ block: "nearest" });
  }, [at]);

  const onKeyDown = (e: KeyboardEvent) => {
    if (over) e.stopPropagation();
    const pressed = keyMeaning(e.key, { open, over });
    if (pressed === null) return;
    e.preventDefault();
    if (pressed === "show") show?.();
    else if (pressed === "take") take(found[at]);
    else if (pressed === "close") {
      e.stopPropagation();
      close();
    } else mark(Math.max(0, Math.min(found.length - 1, at + pressed)));
  };
  return {
    at,
    mark,
    list,
    field: {
      role: "combobox",
      "aria-expanded": open,
      "aria-controls": id,
      "aria-autocomplete": "list",
      "aria-activedescendant": open && at < found.length ? `${id}-${at}` : undefined,
      autoComplete: "off",
      spellCheck: false,
      onKeyDown,
    },
    listbox: { role: "listbox", id },
    option: (n) => ({ role: "option", id: `${id}-${n}` }),
  };
}

/** What a key does in such a field: so many steps in the list, or null where it is the field's own. */
export function keyMeaning(key: string, { open, over }: { open: boolean; over: boolean }): "show" | "take" | "close" | 1 | -1 | null {
  switch (key) {
    case "ArrowDown":
      return open ? 1 : "show";
    case "ArrowUp":
      return -1;
    case "Enter":
      return open ? "take" : null;
    case "Escape":
      return open ? "close" : null;
    case "Tab":
      return over ? "close" : null;
    default:
      return null;
  }
}

/** Calls `close` when a pointer goes down outside of the element. */
export function useOutside(element: RefObject<HTMLElement | null>, close: () => void): void {
  const latest = useRef(close);
  latest.current = close;
  useEffect(() => {
    const outside = (e: PointerEvent) => {
      if (!element.current?.contains(e.target as Node)) latest.current();
    };
    document.addEventListener("pointerdown", outside, true);
    return () => document.removeEventListener("pointerdown", outside, true);
  }, [element]);
}
