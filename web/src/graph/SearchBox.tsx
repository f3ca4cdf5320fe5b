// Adding a node by typing: the best matches first, only fitting ones where a link was dropped.
import { useMemo, useRef, useState } from "react";
import { useInfo } from "../state/info";
import { useCombobox, useOutside } from "../ui";
import { addFromSearch } from "./actions";
import { typeName } from "./compat";
import { searchNodes } from "./search";
import { useGraph, type SearchRequest } from "./store";
import css from "./SearchBox.module.css";

export function SearchBox() {
  const request = useGraph((s) => s.search);
  return request ? <Open key={`${request.screen.x} ${request.screen.y}`} request={request} /> : null;
}

const close = () => {
  useGraph.setState({ search: null });
  document.querySelector<HTMLElement>(".react-flow")?.focus({ preventScroll: true });
};

function Open({ request }: { request: SearchRequest }) {
  const info = useInfo((s) => s.info);
  const [typed, setTyped] = useState("");
  const root = useRef<HTMLDivElement>(null);
  const found = useMemo(() => (info ? searchNodes(info, typed, request.wanted) : []), [info, typed, request.wanted]);
  const take = (name: string | undefined) => {
    if (name === undefined) return;
    close();
    addFromSearch(name, request);
  };
  const combobox = useCombobox({ found, open: true, take: (node) => take(node?.name), close, over: true });
  useOutside(root, () => useGraph.setState({ search: null }));
  const phone = innerWidth < 760;
  const width = Math.min(420, innerWidth - 16);
  const left = phone ? 8 : Math.min(Math.max(8, request.screen.x - 40), innerWidth - width - 8);
  const top = phone ? 64 : Math.min(Math.max(8, request.screen.y - 20), innerHeight - 440);
  const { from, to } = request.wanted;
  return (
    <div ref={root} className={css.box} style={{ left, top: Math.max(8, top), width }} role="dialog" aria-label="Add a node">
      <label className={css.top}>
        <span className={css.hint}>{from !== undefined ? `Takes ${typeName(from)}` : to !== undefined ? `Makes ${typeName(to)}` : "Add a node"}</span>
        <input
          autoFocus
          {...combobox.field}
          aria-label="Search nodes"
          placeholder="Type a name, like “load image”"
          value={typed}
          onChange={(e) => {
            setTyped(e.target.value);
            combobox.mark(0);
          }}
        />
      </label>
      <ul {...combobox.listbox} ref={combobox.list} aria-label="Nodes">
        {found.map((f, i) => (
          <li
            key={f.name}
            {...combobox.option(i)}
            aria-selected={i === combobox.at}
            className={i === combobox.at ? css.at : undefined}
            title={f.description || f.name}
            onClick={() => take(f.name)}
            onPointerMove={() => combobox.mark(i)}
          >
            <span>{f.title}</span>
            <small>{f.category}</small>
          </li>
        ))}
        {found.length === 0 && (
          <li className={css.none} role="presentation">
            {info ? "No node matches." : "Loading the list of nodes…"}
          </li>
        )}
      </ul>
    </div>
  );
}
