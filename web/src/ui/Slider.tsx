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

/** The limits and steps with which a browser's slider can stand at this value: it would move to the nearest one it can. */
export function sliderRange(value: number, min: number, max: number, step: number): { min: number; max: number; step: number | "any" } {
  const low = Math.min(min, value);
  const steps = (value - low) / step;
  return { min: low, max: Math.max(max, value), step: Math.abs(steps - Math.round(steps)) < 1e-6 ? step : "any" };
}

/** The nearest of a slider's steps, without the crumbs of binary fractions. */
export function onStep(value: number, min: number, step: number): number {
  return Number((min + Math.round((value - min) / step) * step).toFixed(10));
}

export function Slider({ value, onChange, min, max, step = 1, label, disabled }: SliderProps) {
  const field = useField();
  const range = sliderRange(value, min, max, step);
  const filled = max > min ? ((Math.min(max, Math.max(min, value)) - min) / (max - min)) * 100 : 0;
  return (
    <div className={css.row}>
      <input
        type="range"
        {...field}
        aria-label={label}
        className={css.range}
        {...range}
        value={value}
        disabled={disabled}
        style={{ "--filled": `${filled}%` } as React.CSSProperties}
        onChange={(e) => onChange(range.step === "any" ? onStep(Number(e.target.value), min, step) : Number(e.target.value))}
      />
      <NumberField
        id={`${field.id ?? label}-number`}
        aria-label={label ? `${label}, exact` : "Exact value"}
        value={value}
        onChange={onChange}
        min={range.min}
        max={range.max}
        step={step}
        disabled={disabled}
        className={css.number}
      />
    </div>
  );
}
