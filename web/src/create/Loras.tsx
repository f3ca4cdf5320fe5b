// Small additions to the model, each with its strength.
import { useInfo } from "../state/info";
import { Button, Combo, Disclosure, IconButton, Slider } from "../ui";
import { modelLabel } from "./modelLabel";
import type { LoraUse } from "./values";
import css from "./Loras.module.css";

export interface LorasProps {
  loras: LoraUse[];
  onChange(loras: LoraUse[]): void;
  error?: string;
}

export function Loras({ loras, onChange, error }: LorasProps) {
  const info = useInfo();
  const names = info.models("loras");
  const change = (i: number, patch: Partial<LoraUse>) => onChange(loras.map((l, k) => (k === i ? { ...l, ...patch } : l)));
  const next = names.find((n) => !loras.some((l) => l.name === n)) ?? names[0];
  return (
    <Disclosure
      title="LoRAs"
      open={loras.length > 0 || Boolean(error)}
      aside={loras.length > 0 ? `${loras.length} in use` : names.length > 0 ? `${names.length} available` : "none yet"}
    >
      <div className={css.list}>
        {loras.map((lora, i) => (
          <div key={i} className={css.lora} role="group" aria-label={`LoRA ${i + 1}`}>
            <div className={css.top}>
              <div className={css.name}>
                <Combo
                  label={`LoRA ${i + 1}`}
                  value={lora.name}
                  onChange={(name) => change(i, { name })}
                  options={names.map((n) => ({ value: n, label: modelLabel(n) }))}
                />
              </div>
              <IconButton label={`Remove ${modelLabel(lora.name)}`} icon="close" onClick={() => onChange(loras.filter((_, k) => k !== i))} />
            </div>
            <Slider
              label={`Strength of ${modelLabel(lora.name)}`}
              value={lora.strength}
              min={-2}
              max={2}
              step={0.05}
              onChange={(strength) => change(i, { strength })}
            />
          </div>
        ))}
        {error && (
          <p className={css.error} role="alert">
            {error}
          </p>
        )}
        {next ? (
          <div>
            <Button icon="plus" onClick={() => onChange([...loras, { name: next, strength: 1 }])}>
              Add a LoRA
            </Button>
          </div>
        ) : (
          <p className={css.hint}>
            A LoRA teaches a model a style or a subject. Put LoRA files into the folder <code>models/loras</code> to add them here.
          </p>
        )}
      </div>
    </Disclosure>
  );
}
