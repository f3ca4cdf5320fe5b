// The list a choice opens: one for the whole editor, with a field to narrow it down.
import { useEffect, useMemo, useRef, useState } from "react";
import { create } from "zustand";
import { Icon } from "../ui";
import css from "./Picker.module.css";

interface Request {
  anchor: HTMLElement;
  label: string;
  choices: unknown[];
  value: unknown;
  many: boolean;
  change(value: unknown): void;
}

const usePicker = create<{ request: Request | null }>()(() => ({ request: null }));
export const openPicker = (request: Request): void => usePicker.setState({ request });
const close = (): void => {
  const { request } = usePicker.getState();
  usePicker.setState({ request: null });
  request?.anchor.focus({ preventScroll: true });
};

const SHOWN = 300;

export function Picker() {
  const request = usePicker((s) => s.request);
  return request ? <Open key={request.label} request={request} /> : null;
}

function Open({ request }: { request: Request }) {
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState<unknown[]>(Array.isArray(request.value) && request.many ? request.value : [request.value]);
  const found = useMemo(() => {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    return request.choices.filter((c) => words.every((w) => String(c).toLowerCase().includes(w)));
  }, [request.choices, typed]);
  const [at, setAt] = useState(() => Math.max(0, request.choices.indexOf(request.value)));
  const root = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLUListElement>(null);

  useEffect(() => {
    list.current?.children[at]?.scrollIntoView({ block: "nearest" });
  }, [at]);
  useEffect(() => {
    const outside = (e: PointerEvent) => {
      if (!root.current?.contains(e.target as Node)) usePicker.setState({ request: null });
    };
    document.addEventListener("pointerdown", outside, true);
    return () => document.removeEventListener("pointerdown", outside, true);
  }, []);

  const take = (value: unknown) => {
    if (request.many) {
      const next = chosen.includes(value) ? chosen.filter((c) => c !== value) : [...chosen, value];
      setChosen(next);
      request.change(next);
      return;
    }
    request.change(value);
    close();
  };
  const box = request.anchor.getBoundingClientRect();
  const width = Math.min(Math.max(box.width, 260), innerWidth - 16);
  const left = Math.min(Math.max(8, box.right - width), innerWidth - width - 8);
  const below = innerHeight - box.bottom > 300 || box.top < 300;
  const place = below ? { top: Math.min(box.bottom + 4, innerHeight - 160) } : { bottom: innerHeight - box.top + 4 };
  const room = below ? innerHeight - box.bottom - 16 : box.top - 16;
  return (
    <div ref={root} className={css.picker} style={{ left, width, maxHeight: Math.max(150, Math.min(420, room)), ...place }}>
      <input
        autoFocus
        className={css.search}
        role="combobox"
        aria-expanded="true"
        aria-controls="graph-picker"
        aria-activedescendant={found[at] === undefined ? undefined : `graph-pick-${at}`}
        aria-label={`Search ${request.label}`}
        placeholder="Search"
        value={typed}
        onChange={(e) => {
          setTyped(e.target.value);
          setAt(0);
        }}
        onKeyDown={(e) => {
          e.stopPropagation();
          if (e.key === "Escape" || e.key === "Tab") {
            e.preventDefault();
            close();
          } else if (e.key === "Enter" && found[at] !== undefined) {
            e.preventDefault();
            take(found[at]);
          } else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
            e.preventDefault();
            setAt(Math.max(0, Math.min(found.length - 1, at + (e.key === "ArrowDown" ? 1 : -1))));
          }
        }}
      />
      <ul ref={list} id="graph-picker" role="listbox" aria-label={request.label} aria-multiselectable={request.many || undefined}>
        {found.slice(0, SHOWN).map((c, i) => (
          <li key={String(c)} id={`graph-pick-${i}`} role="option" aria-selected={chosen.includes(c)} className={i === at ? css.at : undefined} onClick={() => take(c)} onPointerMove={() => setAt(i)}>
            {chosen.includes(c) ? <Icon name="check" size={14} /> : <span className={css.gap} />}
            {String(c)}
          </li>
        ))}
        {found.length === 0 && <li className={css.none} role="presentation">Nothing like that here.</li>}
      </ul>
    </div>
  );
}
