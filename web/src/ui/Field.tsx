// A labelled control, and the plain controls that go into it: text, long text, numbers.
import { createContext, type InputHTMLAttributes, type ReactNode, type Ref, type TextareaHTMLAttributes, useContext, useId, useState } from "react";
import css from "./Field.module.css";

interface FieldIds {
  id: string;
  describedBy?: string;
  invalid: boolean;
}
const FieldContext = createContext<FieldIds | null>(null);

/** Attributes that tie a control to the Field around it. */
export function useField(own?: string) {
  const field = useContext(FieldContext);
  return {
    id: own ?? field?.id,
    "aria-describedby": field?.describedBy,
    "aria-invalid": field?.invalid || undefined,
  };
}

export interface FieldProps {
  label: ReactNode;
  hint?: ReactNode;
  error?: ReactNode;
  /** Stands at the right end of the label's line. */
  aside?: ReactNode;
  className?: string;
  children: ReactNode;
}

export function Field({ label, hint, error, aside, className, children }: FieldProps) {
  const id = useId();
  const describedBy = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
  return (
    <div className={[css.field, className].filter(Boolean).join(" ")}>
      <div className={css.top}>
        <label htmlFor={id} className={css.label}>
          {label}
        </label>
        {aside && <div className={css.aside}>{aside}</div>}
      </div>
      <FieldContext value={{ id, describedBy, invalid: Boolean(error) }}>{children}</FieldContext>
      {hint && (
        <div id={`${id}-hint`} className={css.hint}>
          {hint}
        </div>
      )}
      {error && (
        <div id={`${id}-error`} className={css.error} role="alert">
          {error}
        </div>
      )}
    </div>
  );
}

export interface TextInputProps extends Omit<InputHTMLAttributes<HTMLInputElement>, "onChange" | "value"> {
  value: string;
  onChange(value: string): void;
  ref?: Ref<HTMLInputElement>;
}

export function TextInput({ value, onChange, className, id, ...rest }: TextInputProps) {
  return (
    <input
      type="text"
      {...useField(id)}
      {...rest}
      value={value}
      onChange={(e) => onChange(e.target.value)}
      className={[css.input, className].filter(Boolean).join(" ")}
    />
  );
}

export interface TextAreaProps extends Omit<TextareaHTMLAttributes<HTMLTextAreaElement>, "onChange" | "value"> {
  value: string;
  onChange(value: string): void;
  ref?: Ref<HTMLTextAreaElement>;
}

/** Grows with its text where the browser can. */
export function TextArea({ value, onChange, className, id, rows = 3, ...rest }: TextAreaProps) {
  return (
    <textarea
      {...useField(id)}
      rows={rows}
      {...rest}
      value={value}
      onChange={(e) => onChange(e.target.value)}
      className={[css.input, css.area, className].filter(Boolean).join(" ")}
    />
  );
}

export interface NumberFieldProps extends Omit<InputHTMLAttributes<HTMLInputElement>, "onChange" | "value" | "min" | "max" | "step"> {
  value: number;
  onChange(value: number): void;
  min?: number;
  max?: number;
  step?: number;
  /** The number that is used where this one is typed, e.g. the nearest multiple of eight. */
  fit?(value: number): number;
}

/** The number that is used where a text is typed; null where it is none. */
export function usedNumber(text: string, { min, max, step, fit }: Pick<NumberFieldProps, "min" | "max" | "step" | "fit">): number | null {
  if (text.trim() === "") return null;
  let n = Number(text);
  if (!Number.isFinite(n)) return null;
  if (step !== undefined && Number.isInteger(step) && Number.isInteger(min ?? 0)) n = Math.round(n);
  if (fit) n = fit(n);
  return Math.min(max ?? n, Math.max(min ?? n, n));
}

/** Keeps what is typed while it is being typed. What is not used as it stands becomes what is used when the field is left;
 *  a field that is not typed in always shows the value itself. */
export function NumberField({ value, onChange, min, max, step, fit, className, id, onBlur, onKeyDown, ...rest }: NumberFieldProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const limits = { min, max, step, fit };
  const settle = () => {
    if (draft === null) return;
    const n = usedNumber(draft, limits);
    if (n !== null && n !== value) onChange(n);
    setDraft(null);
  };
  return (
    <input
      type="number"
      inputMode={step !== undefined && Number.isInteger(step) && (min ?? 0) >= 0 ? "numeric" : "decimal"}
      {...useField(id)}
      {...rest}
      min={min}
      max={max}
      step={step ?? "any"}
      value={draft ?? String(value)}
      className={[css.input, css.number, className].filter(Boolean).join(" ")}
      onChange={(e) => {
        setDraft(e.target.value);
        const n = usedNumber(e.target.value, limits);
        if (n !== null && n === Number(e.target.value)) onChange(n);
      }}
      onKeyDown={(e) => {
        if (e.key === "Enter") settle();
        onKeyDown?.(e);
      }}
      onBlur={(e) => {
        settle();
        onBlur?.(e);
      }}
    />
  );
}

/** Lets the field that is being typed in take its value, as if it were left: what is shown is then what is used. To be called
 *  by whatever acts on a form without taking the focus, such as a key. */
export function settleFields(): void {
  const field = document.activeElement;
  if (!(field instanceof HTMLInputElement)) return;
  field.blur();
  field.focus({ preventScroll: true });
}
