// A button that opens a short list of actions; arrow keys walk it.
import { type KeyboardEvent, useEffect, useId, useLayoutEffect, useRef, useState } from "react";
import { Button, type ButtonProps, IconButton } from "./Button";
import { Icon, type IconName } from "./Icon";
import css from "./Menu.module.css";

export interface MenuItem {
  label: string;
  icon?: IconName;
  onSelect(): void;
  disabled?: boolean;
  danger?: boolean;
}

export interface MenuProps {
  /** `{label}` with words on it, `{label, icon}` an icon alone. */
  button: { label: string; icon?: IconName; variant?: ButtonProps["variant"]; size?: ButtonProps["size"]; words?: boolean };
  items: MenuItem[];
  align?: "start" | "end";
}

export function Menu({ button, items, align = "end" }: MenuProps) {
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const id = useId();

  const entries = () => Array.from(list.current?.querySelectorAll<HTMLButtonElement>("button:not(:disabled)") ?? []);
  const close = (back: boolean) => {
    setOpen(false);
    if (back) root.current?.querySelector("button")?.focus();
  };
  // Opens upwards where there is no room below, and never over the edge, also when the screen turns while it is open.
  useLayoutEffect(() => {
    if (!open) return;
    const place = () => {
      const own = root.current?.getBoundingClientRect();
      if (!own || !list.current) return;
      list.current.classList.remove(css.up ?? "");
      list.current.style.translate = "none";
      const box = list.current.getBoundingClientRect();
      list.current.classList.toggle(css.up ?? "", box.bottom > innerHeight - 8 && own.top > box.height + 8);
      const left = Math.max(8, Math.min(box.left, innerWidth - 8 - box.width));
      list.current.style.translate = `${left - box.left}px 0`;
    };
    place();
    addEventListener("resize", place);
    const moved = typeof ResizeObserver === "undefined" ? undefined : new ResizeObserver(place);
    for (let around = root.current?.parentElement; around; around = around.parentElement) moved?.observe(around);
    return () => {
      removeEventListener("resize", place);
      moved?.disconnect();
    };
  }, [open]);
  useEffect(() => {
    if (!open) return;
    entries()[0]?.focus();
    const outside = (e: PointerEvent) => {
      if (!root.current?.contains(e.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);

  const keys = (e: KeyboardEvent) => {
    const all = entries();
    const now = all.indexOf(document.activeElement as HTMLButtonElement);
    const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: all.length - 1 }[e.key];
    if (to !== undefined) {
      e.preventDefault();
      all[(to + all.length) % all.length]?.focus();
    } else if (e.key === "Escape") {
      e.preventDefault();
      e.stopPropagation();
      close(true);
    } else if (e.key === "Tab") {
      close(false);
    }
  };
  const trigger = { "aria-haspopup": "menu" as const, "aria-expanded": open, "aria-controls": open ? id : undefined, onClick: () => setOpen(!open) };
  return (
    <div ref={root} className={css.root}>
      {button.icon && !button.words ? (
        <IconButton label={button.label} icon={button.icon} variant={button.variant} size={button.size} {...trigger} />
      ) : (
        <Button variant={button.variant} size={button.size} icon={button.icon} {...trigger}>
          {button.label}
        </Button>
      )}
      {open && (
        <div ref={list} id={id} role="menu" aria-label={button.label} className={`${css.list} ${css[align]}`} onKeyDown={keys}>
          {items.map((item) => (
            <button
              key={item.label}
              type="button"
              role="menuitem"
              tabIndex={-1}
              disabled={item.disabled}
              className={item.danger ? css.danger : undefined}
              onClick={() => {
                close(true);
                item.onSelect();
              }}
            >
              {item.icon && <Icon name={item.icon} size={18} />}
              {item.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
