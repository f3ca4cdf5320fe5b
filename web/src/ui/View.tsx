// The frame of a view: its heading (which takes the focus when the view is opened), what stands beside it, its content.
import type { ReactNode } from "react";
import css from "./View.module.css";

export interface ViewProps {
  title: string;
  /** A line under the heading. */
  lead?: ReactNode;
  /** Buttons at the right of the heading. */
  actions?: ReactNode;
  /** Uses the whole width. */
  full?: boolean;
  children: ReactNode;
}

export function View({ title, lead, actions, full, children }: ViewProps) {
  return (
    <div className={`${css.view} ${full ? css.full : ""}`}>
      <header className={css.head}>
        <div>
          <h1 tabIndex={-1}>{title}</h1>
          {lead && <p className={css.lead}>{lead}</p>}
        </div>
        {actions && <div className={css.actions}>{actions}</div>}
      </header>
      {children}
    </div>
  );
}

/** A quiet box for things that belong together. */
export function Card({ children, className }: { children: ReactNode; className?: string }) {
  return <section className={[css.card, className].filter(Boolean).join(" ")}>{children}</section>;
}
