// What a run warns of, beside its results.
import type { Warning } from "../api/warnings";
import { Icon } from "./Icon";
import css from "./Warnings.module.css";

export function Warnings({ list }: { list: Warning[] }) {
  if (list.length === 0) return null;
  return (
    <div className={css.list} role="status" aria-label="Warnings">
      {list.map((w) => (
        <p key={w.text}>
          <Icon name="warning" size={18} />
          <span>{w.text}</span>
        </p>
      ))}
    </div>
  );
}
