// One field of a form with the control that suits its kind.
import { Combo, Field as Labelled, IconButton, NumberField, Select, Slider, Switch, TextArea, TextInput, useField } from "../ui";
import { type Field, keyOf, type Values } from "./fields";
import { FileField } from "./FileField";
import type { SeedMode } from "./form";
import css from "./FieldControl.module.css";

export interface FieldControlProps {
  field: Field;
  values: Values;
  onChange(changes: Values): void;
  seed?: SeedMode;
  onSeed?(mode: SeedMode): void;
  error?: string;
  /** Whether its node's own explanation is shown. */
  explain?: boolean;
}

const numberOf = (value: unknown): number => (typeof value === "number" && Number.isFinite(value) ? value : Number(value) || 0);
const textOf = (value: unknown): string => (value === undefined || value === null ? "" : String(value));

export function FieldControl({ field, values, onChange, seed = "random", onSeed, error, explain }: FieldControlProps) {
  const key = keyOf(field.node, field.inputs[0]!);
  const value = values[key];
  const set = (next: unknown) => onChange({ [key]: next });
  const { min, max, step } = field;

  if (field.kind === "switch") {
    return (
      <div className={css.stack}>
        <Switch label={field.label} hint={(explain && field.hint) || undefined} checked={Boolean(value)} onChange={set} />
        {error && (
          <p className={css.error} role="alert">
            {error}
          </p>
        )}
      </div>
    );
  }
  if (field.kind === "file") return <FileField field={field} value={textOf(value)} onChange={set} error={error} />;

  return (
    <Labelled
      label={field.label}
      hint={explain ? field.hint : undefined}
      error={error}
      aside={field.kind === "seed" ? (seed === "fixed" ? "Kept" : "New each time") : undefined}
    >
      {field.kind === "text" && (
        <TextArea value={textOf(value)} rows={3} className={field.role === "negative" || field.group === "rest" ? css.small : css.words} onChange={set} />
      )}
      {field.kind === "line" && <TextInput value={textOf(value)} onChange={set} />}
      {field.kind === "number" &&
        (slides(field) ? (
          <Slider value={numberOf(value)} min={min!} max={max!} step={step} onChange={set} />
        ) : (
          <NumberField value={numberOf(value)} min={min} max={max} step={step} fit={field.whole ? Math.round : undefined} onChange={set} />
        ))}
      {field.kind === "choice" && <Choice field={field} value={textOf(value)} onChange={set} />}
      {field.kind === "color" && <Colour value={value} onChange={set} />}
      {field.kind === "seed" && (
        <div className={css.row}>
          <NumberField
            value={numberOf(value)}
            min={min}
            max={max}
            step={1}
            onChange={(n) => {
              set(n);
              // Whoever types a seed wants that seed.
              onSeed?.("fixed");
            }}
          />
          <IconButton
            label={`Roll a new seed: ${field.label}`}
            icon="dice"
            variant="plain"
            onClick={() => set(Math.floor(Math.random() * Math.min(2 ** 50, max ?? 2 ** 50)))}
          />
          <IconButton
            label={`Keep this seed: ${field.label}`}
            icon={seed === "fixed" ? "lock" : "unlock"}
            variant="plain"
            pressed={seed === "fixed"}
            onClick={() => onSeed?.(seed === "fixed" ? "random" : "fixed")}
          />
        </div>
      )}
      {field.kind === "size" && <Size field={field} values={values} onChange={onChange} />}
    </Labelled>
  );
}

/** A slider suits a number with few steps between its limits. */
function slides(field: Field): boolean {
  const { min, max, step = 1 } = field;
  if (min === undefined || max === undefined || max <= min) return false;
  return (max - min) / step <= 200 && max - min <= 64;
}

function Choice({ field, value, onChange }: { field: Field; value: string; onChange(value: unknown): void }) {
  const choices = field.choices ?? [];
  if (choices.length > 24) return <Combo options={choices} value={value} onChange={onChange} label={field.label} />;
  return <Select options={choices} value={value} onChange={onChange} />;
}

function Colour({ value, onChange }: { value: unknown; onChange(value: unknown): void }) {
  const own = useField();
  const whole = typeof value === "number";
  const hex = whole ? `#${value.toString(16).padStart(6, "0").slice(-6)}` : /^#[0-9a-f]{6}$/i.test(textOf(value)) ? textOf(value) : null;
  const picker = (
    <input
      type="color"
      {...own}
      className={css.colour}
      value={hex ?? "#000000"}
      onChange={(e) => onChange(whole ? parseInt(e.target.value.slice(1), 16) : e.target.value)}
    />
  );
  // The picker cannot show other ways to write a colour; the text can.
  return hex ? (
    picker
  ) : (
    <div className={css.row}>
      {picker}
      <TextInput id={`${own.id}-text`} aria-label="Colour as text" value={textOf(value)} onChange={onChange} />
    </div>
  );
}

function Size({ field, values, onChange }: { field: Field; values: Values; onChange(changes: Values): void }) {
  const [width, height] = field.inputs.map((input) => keyOf(field.node, input)) as [string, string];
  const { min, max, step } = field;
  // Latents have cells of some pixels: a size in between would be drawn as another one.
  const cell = step && Number.isInteger(step) && (min ?? 0) % step === 0 ? step : 1;
  const limits = { min, max, step, fit: (n: number) => Math.round(n / cell) * cell };
  return (
    <div className={css.row}>
      <NumberField aria-label={`${field.label}: width`} {...limits} value={numberOf(values[width])} onChange={(n) => onChange({ [width]: n })} />
      <span aria-hidden="true" className={css.times}>
        ×
      </span>
      <NumberField
        id={`${width}-height`}
        aria-label={`${field.label}: height`}
        {...limits}
        value={numberOf(values[height])}
        onChange={(n) => onChange({ [height]: n })}
      />
      <IconButton
        label={`Swap width and height of ${field.label}`}
        icon="swap"
        variant="plain"
        onClick={() => onChange({ [width]: values[height], [height]: values[width] })}
      />
    </div>
  );
}
