// A part that folds away, on the native element.
import { type ReactNode, useState } from "react";
import { Icon } from "./Icon";
import css from "./Disclosure.module.css";

export interface DisclosureProps {
  title: ReactNode;
  /** Whether it starts open. */
  open?: boolean;
  /** Short words at the right end, e.g. what is set inside. */
  aside?: ReactNode;
  onToggle?(open: boolean): void;
  children: ReactNode;
}

export function Disclosure({ title, open = false, aside, onToggle, children }: DisclosureProps) {
  const [isOpen, setOpen] = useState(open);
  return (
    <details
      className={css.details}
      open={isOpen}
      onToggle={(e) => {
        if (e.target !== e.currentTarget) return;
        setOpen(e.currentTarget.open);
        onToggle?.(e.currentTarget.open);
      }}
    >
      <summary className={css.summary}>
        <Icon name="chevron" size={18} className={css.arrow} />
        <span className={css.title}>{title}</span>
        {aside && <span className={css.aside}>{aside}</span>}
      </summary>
      <div className={css.body}>{children}</div>
    </details>
  );
}
