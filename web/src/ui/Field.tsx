// A labelled control, and the plain controls that go into it: text, long text, numbers.
import { createContext, type InputHTMLAttributes, type ReactNode, type Ref, type TextareaHTMLAttributes, useContext, useEffect, useId, useState } from "react";
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
        <label htmlFor={id} className={css.label}>{label}</label>
        {aside && <div className={css.aside}>{aside}</div>}
      </div>
      <FieldContext value={{ id, describedBy, invalid: Boolean(error) }}>{children}</FieldContext>
      {hint && <div id={`${id}-hint`} className={css.hint}>{hint}</div>}
      {error && <div id={`${id}-error`} className={css.error} role="alert">{error}</div>}
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
    <input type="text" {...useField(id)} {...rest} value={value} onChange={(e) => onChange(e.target.value)}
      className={[css.input, className].filter(Boolean).join(" ")} />
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
    <textarea {...useField(id)} rows={rows} {...rest} value={value} onChange={(e) => onChange(e.target.value)}
      className={[css.input, css.area, className].filter(Boolean).join(" ")} />
  );
}

export interface NumberFieldProps extends Omit<InputHTMLAttributes<HTMLInputElement>, "onChange" | "value" | "min" | "max" | "step"> {
  value: number;
  onChange(value: number): void;
  min?: number;
  max?: number;
  step?: number;
}

/** Keeps what is typed until it is a number in range; put right when the field is left. */
export function NumberField({ value, onChange, min, max, step, className, id, onBlur, ...rest }: NumberFieldProps) {
  const [draft, setDraft] = useState(String(value));
  useEffect(() => {
    setDraft((old) => (old.trim() !== "" && Number(old) === value ? old : String(value)));
  }, [value]);
  const fits = (n: number) => Number.isFinite(n) && (min === undefined || n >= min) && (max === undefined || n <= max);
  return (
    <input type="number" inputMode={step !== undefined && Number.isInteger(step) && (min ?? 0) >= 0 ? "numeric" : "decimal"} {...useField(id)} {...rest}
      min={min} max={max} step={step ?? "any"} value={draft} className={[css.input, css.number, className].filter(Boolean).join(" ")}
      onChange={(e) => {
        setDraft(e.target.value);
        const n = Number(e.target.value);
        if (e.target.value.trim() !== "" && fits(n)) onChange(n);
      }}
      onBlur={(e) => {
        const n = Number(draft);
        const right = draft.trim() === "" || !Number.isFinite(n) ? value : Math.min(max ?? n, Math.max(min ?? n, n));
        setDraft(String(right));
        if (right !== value) onChange(right);
        onBlur?.(e);
      }} />
  );
}
