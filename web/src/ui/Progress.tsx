// A progress bar with its words; without a maximum it only says that something goes on.
import css from "./Progress.module.css";

export interface ProgressProps {
  value: number;
  max: number;
  label: string;
  /** Words under the bar; the label is always read out. */
  text?: string;
  thin?: boolean;
}

export function Progress({ value, max, label, text, thin }: ProgressProps) {
  const known = max > 0;
  const percent = known ? Math.round((Math.min(value, max) / max) * 100) : undefined;
  return (
    <div className={css.wrap}>
      <div
        role="progressbar"
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={percent}
        aria-valuetext={text ?? (percent === undefined ? "working" : `${percent} percent`)}
        className={`${css.bar} ${thin ? css.thin : ""} ${known ? "" : css.unknown}`}
      >
        <div className={css.fill} style={{ width: known ? `${percent}%` : undefined }} />
      </div>
      {text && <div className={css.text}>{text}</div>}
    </div>
  );
}
