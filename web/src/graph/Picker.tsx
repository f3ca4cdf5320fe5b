// The list a choice opens: one for the whole editor, with a field to narrow it down.
import { useMemo, useRef, useState } from "react";
import { create } from "zustand";
import { Icon, useCombobox, useOutside } from "../ui";
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
    return request.choices.filter((c) => words.every((w) => String(c).toLowerCase().includes(w))).slice(0, SHOWN);
  }, [request.choices, typed]);
  const root = useRef<HTMLDivElement>(null);
  const take = (value: unknown) => {
    if (value === undefined) return;
    if (request.many) {
      const next = chosen.includes(value) ? chosen.filter((c) => c !== value) : [...chosen, value];
      setChosen(next);
      request.change(next);
      return;
    }
    request.change(value);
    close();
  };
  const combobox = useCombobox({ found, open: true, start: Math.max(0, request.choices.indexOf(request.value)), take, close, over: true });
  useOutside(root, () => usePicker.setState({ request: null }));
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
        {...combobox.field}
        className={css.search}
        aria-label={`Search ${request.label}`}
        placeholder="Search"
        value={typed}
        onChange={(e) => {
          setTyped(e.target.value);
          combobox.mark(0);
        }}
      />
      <ul {...combobox.listbox} ref={combobox.list} aria-label={request.label} aria-multiselectable={request.many || undefined}>
        {found.map((c, i) => (
          <li
            key={String(c)}
            {...combobox.option(i)}
            aria-selected={chosen.includes(c)}
            className={i === combobox.at ? css.at : undefined}
            onClick={() => take(c)}
            onPointerMove={() => combobox.mark(i)}
          >
            {chosen.includes(c) ? <Icon name="check" size={14} /> : <span className={css.gap} />}
            {String(c)}
          </li>
        ))}
        {found.length === 0 && (
          <li className={css.none} role="presentation">
            Nothing matches.
          </li>
        )}
      </ul>
    </div>
  );
}
