// Sets of values by name: three that come along, and the user's own.
import { useEffect, useState } from "react";
import { Button, Dialog, Field, Menu, type MenuItem, TextInput, toast, toastUndo } from "../ui";
import { applied, BUILT_IN, builtIn, loadPresets, matches, type Preset, presetFrom, savePresets, withPreset } from "./presets";
import type { CreateValues } from "./values";
import css from "./Presets.module.css";

export interface PresetsProps {
  values: CreateValues;
  update(change: (v: CreateValues) => CreateValues): void;
  models: string[];
}

export function Presets({ values, update, models }: PresetsProps) {
  const [own, setOwn] = useState<Preset[]>([]);
  const [naming, setNaming] = useState(false);
  const [name, setName] = useState("");
  useEffect(() => {
    loadPresets().then(setOwn, () => undefined);
  }, []);

  const store = (list: Preset[]) => {
    const before = own;
    setOwn(list);
    savePresets(list).catch(() => {
      setOwn(before);
      toast("The preset could not be saved.", "bad");
    });
  };
  const add = () => {
    const given = name.trim();
    if (!given) return;
    store(withPreset(own, presetFrom(given, values)));
    setNaming(false);
    setName("");
    toast(`Saved as “${given}”.`, "good");
  };
  const items: MenuItem[] = [
    ...own.map(
      (p): MenuItem => ({ label: p.name, icon: matches(p.values, values) ? "check" : "star", onSelect: () => update((v) => applied(v, p.values, models)) }),
    ),
    { label: "Save these settings…", icon: "save", onSelect: () => setNaming(true) },
    ...own.map(
      (p): MenuItem => ({
        label: `Delete “${p.name}”`,
        icon: "trash",
        danger: true,
        onSelect: () => {
          store(own.filter((o) => o.name !== p.name));
          toastUndo(`“${p.name}” was deleted.`, () => store(withPreset(own, p)));
        },
      }),
    ),
  ];
  const current = own.find((p) => matches(p.values, values));
  return (
    <div className={css.presets} role="group" aria-label="Presets">
      <div className={css.segments}>
        {BUILT_IN.map((n) => (
          <button
            key={n}
            type="button"
            className={css.segment}
            aria-pressed={matches(builtIn(n, values.model), values)}
            onClick={() => update((v) => applied(v, builtIn(n, v.model), models))}
          >
            {n}
          </button>
        ))}
      </div>
      <Menu button={{ label: current ? `My presets: ${current.name}` : "My presets", icon: "star", variant: "plain" }} items={items} />
      <Dialog
        open={naming}
        onClose={() => setNaming(false)}
        title="Save these settings"
        actions={
          <>
            <Button variant="quiet" onClick={() => setNaming(false)}>
              Cancel
            </Button>
            <Button variant="primary" onClick={add} disabled={!name.trim()}>
              Save
            </Button>
          </>
        }
      >
        <Field label="Name" hint="Saves size, steps, guidance, sampler, model, LoRAs and what to avoid, but not the prompt and the seed.">
          <TextInput
            value={name}
            onChange={setName}
            maxLength={60}
            autoFocus
            onKeyDown={(e) => {
              if (e.key !== "Enter") return;
              // The focus goes back to the menu's button; the same key must not press that.
              e.preventDefault();
              add();
            }}
          />
        </Field>
      </Dialog>
    </div>
  );
}
