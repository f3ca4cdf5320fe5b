// On or off, with its words beside it.
import css from "./Switch.module.css";

export interface SwitchProps {
  label: string;
  checked: boolean;
  onChange(checked: boolean): void;
  hint?: string;
  disabled?: boolean;
}

export function Switch({ label, checked, onChange, hint, disabled }: SwitchProps) {
  return (
    <label className={css.row}>
      <input type="checkbox" role="switch" className={css.input} checked={checked} disabled={disabled} onChange={(e) => onChange(e.target.checked)} />
      <span className={css.track} aria-hidden="true" />
      <span className={css.words}>
        <span>{label}</span>
        {hint && <span className={css.hint}>{hint}</span>}
      </span>
    </label>
  );
}
