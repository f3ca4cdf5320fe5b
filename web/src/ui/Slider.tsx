// A slider with its number beside it, so that both rough and exact values are easy.
import { NumberField, useField } from "./Field";
import css from "./Slider.module.css";

export interface SliderProps {
  value: number;
  onChange(value: number): void;
  min: number;
  max: number;
  step?: number;
  /** Needed where no Field stands around it. */
  label?: string;
  disabled?: boolean;
}

export function Slider({ value, onChange, min, max, step = 1, label, disabled }: SliderProps) {
  const field = useField();
  const filled = max > min ? ((Math.min(max, Math.max(min, value)) - min) / (max - min)) * 100 : 0;
  return (
    <div className={css.row}>
      <input type="range" {...field} aria-label={label} className={css.range} min={min} max={max} step={step} value={value} disabled={disabled}
        style={{ "--filled": `${filled}%` } as React.CSSProperties} onChange={(e) => onChange(Number(e.target.value))} />
      <NumberField id={`${field.id ?? label}-number`} aria-label={label ? `${label}, exact` : "Exact value"} value={value} onChange={onChange} min={min} max={max} step={step}
        disabled={disabled} className={css.number} />
    </div>
  );
}
