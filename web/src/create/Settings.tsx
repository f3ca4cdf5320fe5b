// What most people change, below the prompt: the model, how careful, which shape, what to avoid, the seed, and the rest folded.
import { useState } from "react";
import { choicesOf } from "../api/workflow";
import { useInfo } from "../state/info";
import { Combo, Disclosure, Field, IconButton, NumberField, Select, Slider, TextArea, toast } from "../ui";
import { drawingModels, recipeOf } from "./detected";
import { AWAY, type Problem } from "./errors";
import { familyOf, presetOf, SIDE_MAX, SIDE_MIN, sizePresets, snap } from "./family";
import { Loras } from "./Loras";
import { modelLabel } from "./modelLabel";
import { Presets } from "./Presets";
import { chooseModel } from "./store";
import { type CreateValues, modeOf, rollSeed, STEPS_MAX } from "./values";
import css from "./Settings.module.css";

export interface SettingsProps {
  values: CreateValues;
  set(patch: Partial<CreateValues>): void;
  update(change: (v: CreateValues) => CreateValues): void;
  models: string[];
  fields: Problem["fields"];
}

export function Settings({ values, set, update, models, fields }: SettingsProps) {
  const info = useInfo((s) => s.info);
  const sampler = info?.KSampler?.input.required;
  const samplers = choicesOf(sampler?.sampler_name) ?? [values.sampler];
  const schedulers = choicesOf(sampler?.scheduler) ?? [values.scheduler];
  return (
    <div className={css.settings}>
      <Presets values={values} update={update} models={models} />
      <SizeField values={values} set={set} fields={fields} />
      {!recipeOf(values.model).distilled && (
        <Field label="Avoid" error={fields.negative} hint="What should not be in the picture.">
          <TextArea rows={2} value={values.negative} onChange={(negative) => set({ negative })} placeholder="blurry, text" />
        </Field>
      )}
      <Field label="Seed" error={fields.seed} hint={values.seedLocked ? "Locked: the same seed gives the same picture." : "A new seed for every picture."}>
        <div className={css.row}>
          <NumberField value={values.seed} min={0} max={Number.MAX_SAFE_INTEGER} step={1} onChange={(seed) => set({ seed, seedLocked: true })} />
          <IconButton variant="plain" label="Roll a new seed" icon="dice" onClick={() => set({ seed: rollSeed() })} />
          <IconButton
            variant="plain"
            label="Keep this seed"
            icon={values.seedLocked ? "lock" : "unlock"}
            pressed={values.seedLocked}
            onClick={() => set({ seedLocked: !values.seedLocked })}
          />
        </div>
      </Field>
      <Disclosure
        title="Fine tuning"
        open={Boolean(fields.steps ?? fields.cfg ?? fields.sampler ?? fields.scheduler)}
        aside={`${values.steps} steps, guidance ${values.cfg}`}
      >
        <div className={css.group}>
          <Field label="Steps" error={fields.steps} hint="More steps take longer and often look cleaner.">
            <Slider value={values.steps} min={1} max={Math.max(STEPS_MAX / 2.5, values.steps)} step={1} onChange={(steps) => set({ steps })} />
          </Field>
          <Field label="Guidance" error={fields.cfg} hint="How closely to follow the prompt. Too much looks harsh.">
            <Slider value={values.cfg} min={1} max={Math.max(15, values.cfg)} step={0.1} onChange={(cfg) => set({ cfg })} />
          </Field>
          <Field label="Sampler" error={fields.sampler}>
            <Combo value={values.sampler} options={samplers} onChange={(s) => set({ sampler: s })} />
          </Field>
          <Field label="Scheduler" error={fields.scheduler}>
            <Select value={values.scheduler} options={schedulers} onChange={(scheduler) => set({ scheduler })} />
          </Field>
        </div>
      </Disclosure>
      <Loras loras={values.loras} onChange={(loras) => set({ loras })} error={fields.loras} />
    </div>
  );
}

/** The model, which decides more than anything below: directly under the prompt. */
export function ModelField({ values, models, error }: { values: CreateValues; models: string[]; error?: string }) {
  const [looking, setLooking] = useState(false);
  const look = async () => {
    setLooking(true);
    try {
      await useInfo.getState().reload();
      const found = drawingModels(useInfo.getState().models).length;
      toast(found === 1 ? "1 model found." : `${found} models found.`, "info");
    } catch {
      toast(AWAY, "bad");
    } finally {
      setLooking(false);
    }
  };
  return (
    <Field label="Model" error={error}>
      <div className={css.row}>
        <Select className={css.grow} value={values.model} onChange={chooseModel} options={models.map((m) => ({ value: m, label: modelLabel(m) }))} />
        <IconButton variant="plain" label="Refresh the list of models" icon="refresh" busy={looking} onClick={() => void look()} />
      </div>
    </Field>
  );
}

function SizeField({ values, set, fields }: Pick<SettingsProps, "values" | "set" | "fields">) {
  const home = familyOf(values.model).home;
  const active = presetOf(values, home);
  const from = modeOf(values) !== "text" && values.imageSize;
  const error = fields.width ?? fields.height;
  return (
    <fieldset className={css.size}>
      <legend>Size</legend>
      <div className={css.shapes} role="group" aria-label="Shapes">
        {sizePresets(home).map((p) => (
          <button key={p.id} type="button" className={css.shape} aria-pressed={active === p.id} onClick={() => set({ width: p.width, height: p.height })}>
            <span
              className={css.outline}
              style={{ aspectRatio: `${p.width} / ${p.height}`, [p.width >= p.height ? "width" : "height"]: 22 }}
              aria-hidden="true"
            />
            {p.label}
          </button>
        ))}
      </div>
      <div className={css.row}>
        <NumberField aria-label="Width" value={values.width} min={SIDE_MIN} max={SIDE_MAX} step={8} fit={snap} onChange={(width) => set({ width })} />
        <span aria-hidden="true">×</span>
        <NumberField aria-label="Height" value={values.height} min={SIDE_MIN} max={SIDE_MAX} step={8} fit={snap} onChange={(height) => set({ height })} />
        <IconButton variant="plain" label="Swap width and height" icon="swap" onClick={() => set({ width: values.height, height: values.width })} />
      </div>
      {from && (from.width !== values.width || from.height !== values.height) && (
        <p className={css.hint}>
          The start picture is {from.width} × {from.height}; it is fitted to this size.
        </p>
      )}
      {!from && Math.max(values.width, values.height) > home * 2 && (
        <p className={css.hint}>
          This model works best at about {home} × {home}. Much larger pictures may repeat things: make a small one and upscale it.
        </p>
      )}
      {error && (
        <p className={css.error} role="alert">
          {error}
        </p>
      )}
    </fieldset>
  );
}
