// A modal window on the native element: the browser keeps the focus inside and gives it back.
import { type ReactNode, useEffect, useId, useRef } from "react";
import { IconButton } from "./Button";
import css from "./Dialog.module.css";

export interface DialogProps {
  open: boolean;
  onClose(): void;
  title: string;
  children: ReactNode;
  /** Buttons in a row at the bottom. */
  actions?: ReactNode;
  wide?: boolean;
}

export function Dialog({ open, onClose, title, children, actions, wide }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const element = dialog.current;
    if (!element) return;
    if (open && !element.open) {
      element.showModal();
      // The browser would start at the button that closes; the content is what people came for.
      const body = element.querySelector(`.${css.body}`);
      (
        body?.querySelector<HTMLElement>("[data-autofocus]") ?? element.querySelector<HTMLElement>(`.${css.body} :is(input, textarea, select, button, a[href])`)
      )?.focus();
    }
    if (!open && element.open) element.close();
  }, [open]);
  return (
    <dialog
      ref={dialog}
      className={`${css.dialog} ${wide ? css.wide : ""}`}
      aria-labelledby={titleId}
      onCancel={(e) => {
        // Events of file pickers and inner dialogs bubble here too.
        if (e.target !== e.currentTarget) return;
        e.preventDefault();
        onClose();
      }}
      onMouseDown={(e) => {
        if (e.target === e.currentTarget) onClose();
      }}
    >
      {open && (
        <div className={css.inside}>
          <div className={css.head}>
            <h2 id={titleId}>{title}</h2>
            <IconButton label="Close" icon="close" onClick={onClose} />
          </div>
          <div className={css.body}>{children}</div>
          {actions && <div className={css.actions}>{actions}</div>}
        </div>
      )}
    </dialog>
  );
}
