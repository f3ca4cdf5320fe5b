// Choosing one of a few (native select), or one of many by typing (Combo).
import { type SelectHTMLAttributes, useLayoutEffect, useState } from "react";
import { useField } from "./Field";
import { Icon } from "./Icon";
import field from "./Field.module.css";
import css from "./Select.module.css";
import { useCombobox } from "./useCombobox";

export type Options = readonly string[] | readonly { value: string; label: string; disabled?: boolean }[];

export function optionList(options: Options): { value: string; label: string; disabled?: boolean }[] {
  return options.map((o) => (typeof o === "string" ? { value: o, label: o } : o));
}

export interface SelectProps extends Omit<SelectHTMLAttributes<HTMLSelectElement>, "onChange" | "value"> {
  options: Options;
  value: string;
  onChange(value: string): void;
}

export function Select({ options, value, onChange, className, id, ...rest }: SelectProps) {
  const list = optionList(options);
  return (
    <span className={[css.wrap, className].filter(Boolean).join(" ")}>
      <select {...useField(id)} {...rest} value={value} onChange={(e) => onChange(e.target.value)} className={`${field.input} ${css.select}`}>
        {/* A value that is no longer offered stays visible rather than turning into another one. */}
        {!list.some((o) => o.value === value) && <option value={value}>{value === "" ? "Choose…" : value}</option>}
        {list.map((o) => (
          <option key={o.value} value={o.value} disabled={o.disabled}>
            {o.label}
          </option>
        ))}
      </select>
      <Icon name="chevron" size={18} className={css.arrow} />
    </span>
  );
}

export interface ComboProps {
  options: Options;
  value: string;
  onChange(value: string): void;
  placeholder?: string;
  /** Needed where no Field stands around it. */
  label?: string;
  disabled?: boolean;
  /** Anything may be typed, not only what is offered. */
  free?: boolean;
}

/** Those whose label or value holds all the words typed, in their order. */
export function matching(options: Options, typed: string): { value: string; label: string }[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return optionList(options).filter((o) => {
    const text = `${o.label} ${o.value}`.toLowerCase();
    return words.every((w) => text.includes(w));
  });
}

/** The choice that a text names in full. */
export function named(options: Options, typed: string): { value: string; label: string } | undefined {
  const text = typed.trim().toLowerCase();
  const list = optionList(options);
  return list.find((o) => o.value.toLowerCase() === text) ?? list.find((o) => o.label.toLowerCase() === text);
}

const SHOWN = 200;

export function Combo({ options, value, onChange, placeholder, label, disabled, free }: ComboProps) {
  const own = useField();
  const [open, setOpen] = useState(false);
  const [typed, setTyped] = useState<string | null>(null);
  const found = matching(options, typed ?? "").slice(0, SHOWN);
  const shown = optionList(options).find((o) => o.value === value)?.label ?? value;
  const close = () => {
    setOpen(false);
    setTyped(null);
  };
  const choose = (v: string) => {
    onChange(v);
    close();
  };
  const combobox = useCombobox({
    found,
    open,
    close,
    show: () => setOpen(true),
    take: (pick) => {
      if (pick) choose(pick.value);
      else if (free && typed !== null) choose(typed);
    },
  });
  const { list } = combobox;

  useLayoutEffect(() => {
    const box = list.current?.getBoundingClientRect();
    const around = list.current?.parentElement?.getBoundingClientRect();
    if (open && box && around) list.current?.classList.toggle(css.up ?? "", box.bottom > innerHeight - 8 && around.top > box.height + 8);
  }, [open, list]);
  return (
    <div
      className={css.wrap}
      onBlur={(e) => {
        if (e.currentTarget.contains(e.relatedTarget)) return;
        const whole = typed === null ? undefined : named(options, typed);
        if (typed !== null && (free || whole) && (whole?.value ?? typed) !== value) onChange(whole?.value ?? typed);
        close();
      }}
    >
      <input
        type="text"
        {...own}
        {...combobox.field}
        aria-label={label}
        placeholder={placeholder}
        disabled={disabled}
        className={`${field.input} ${css.select}`}
        value={typed ?? shown}
        onFocus={(e) => e.target.select()}
        onClick={() => setOpen(true)}
        onChange={(e) => {
          setTyped(e.target.value);
          combobox.mark(0);
          setOpen(true);
        }}
      />
      <Icon name="chevron" size={18} className={css.arrow} />
      <ul {...combobox.listbox} ref={list} className={css.list} hidden={!open} aria-label={label ?? "Choices"}>
        {open &&
          found.map((o, i) => (
            <li
              key={o.value}
              {...combobox.option(i)}
              aria-selected={o.value === value}
              className={i === combobox.at ? css.at : undefined}
              onPointerDown={(e) => e.preventDefault()}
              onClick={() => choose(o.value)}
            >
              {o.label}
            </li>
          ))}
        {open && found.length === 0 && (
          <li role="option" aria-selected="false" aria-disabled="true" className={css.none}>
            Nothing matches
          </li>
        )}
      </ul>
    </div>
  );
}
