// What a view says while there is nothing to show: what will appear here, and how.
import type { ReactNode } from "react";
import { Icon, type IconName } from "./Icon";
import css from "./EmptyState.module.css";

export interface EmptyStateProps {
  icon?: IconName;
  title: string;
  children?: ReactNode;
  action?: ReactNode;
}

export function EmptyState({ icon = "image", title, children, action }: EmptyStateProps) {
  return (
    <div className={css.empty}>
      <span className={css.icon}>
        <Icon name={icon} size={28} />
      </span>
      <h2>{title}</h2>
      {children && <div className={css.text}>{children}</div>}
      {action}
    </div>
  );
}
