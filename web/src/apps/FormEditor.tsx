// The mode that edits the form: which fields are shown, in which order, under which words, and what happens to seeds.
import { useEffect, useRef, useState } from "react";
import type { ObjectInfo } from "../api/types";
import { Button, Disclosure, IconButton, Switch, TextInput } from "../ui";
import { byNode, type Field } from "./fields";
import { defaultForm, type FormDef, move, rename, resolve, setSeedMode, setShown } from "./form";
import css from "./FormEditor.module.css";

export interface FormEditorProps {
  fields: Field[];
  form: FormDef;
  info: ObjectInfo;
  onChange(form: FormDef): void;
  onDone(): void;
}

export function FormEditor({ fields, form, info, onChange, onDone }: FormEditorProps) {
  const { shown, rest } = resolve(form, fields);
  const [find, setFind] = useState("");
  const [moved, setMoved] = useState<{ key: string; by: number } | null>(null);
  const list = useRef<HTMLOListElement>(null);
  const [said, setSaid] = useState("");

  // The pressed arrow keeps the focus while its field moves; at the end of the list the other arrow takes it.
  useEffect(() => {
    if (!moved) return;
    const row = list.current?.querySelector(`[data-key="${CSS.escape(moved.key)}"]`);
    const [up, down] = row?.querySelectorAll<HTMLButtonElement>("button[data-move]") ?? [];
    const wanted = moved.by < 0 ? up : down;
    (wanted?.disabled ? (moved.by < 0 ? down : up) : wanted)?.focus();
  }, [moved]);

  const shift = (field: Field, by: number) => {
    onChange(move(form, field.key, by));
    setMoved({ key: field.key, by });
    setSaid(`${field.label} is now number ${shown.findIndex((f) => f.key === field.key) + 1 + by} of ${shown.length}`);
  };
  const wanted = find.trim().toLowerCase();
  const nodes = byNode(rest, info).filter(
    (node) => !wanted || `${node.title} ${node.classType} ${node.fields.map((f) => f.label).join(" ")}`.toLowerCase().includes(wanted),
  );

  return (
    <div className={css.editor}>
      <h2>Shown</h2>
      <ol className={css.list} ref={list}>
        {shown.map((field, index) => (
          <li key={field.key} data-key={field.key} className={css.row}>
            <div className={css.moves}>
              <IconButton data-move size="s" label={`Move ${field.label} up`} icon="up" disabled={index === 0} onClick={() => shift(field, -1)} />
              <IconButton
                data-move
                size="s"
                label={`Move ${field.label} down`}
                icon="down"
                disabled={index === shown.length - 1}
                onClick={() => shift(field, 1)}
              />
            </div>
            <div className={css.words}>
              <TextInput
                aria-label={`Label of ${field.nodeTitle}, ${field.inputs.join(" and ")}`}
                value={form.shown.find((e) => e.key === field.key)?.label ?? field.label}
                placeholder={fields.find((f) => f.key === field.key)?.label}
                onChange={(label) => onChange(rename(form, field.key, label))}
              />
              <span className={css.origin}>
                {field.nodeTitle} · {field.inputs.join(" × ")}
              </span>
              {field.kind === "seed" && (
                <Switch
                  label="A new seed for each run"
                  checked={(form.seeds[field.key] ?? "random") === "random"}
                  onChange={(on) => onChange(setSeedMode(form, field.key, on ? "random" : "fixed"))}
                />
              )}
            </div>
            <IconButton label={`Do not show ${field.label}`} icon="eyeOff" onClick={() => onChange(setShown(form, fields, field.key, false))} />
          </li>
        ))}
      </ol>
      {!shown.length && <p className={css.origin}>Nothing yet. Add fields from the nodes below.</p>}
      <p className="hidden-visually" role="status">
        {said}
      </p>

      <h2>Not shown</h2>
      <Switch label='Keep these under "More"' checked={form.more} onChange={(more) => onChange({ ...form, more })} />
      {rest.length > 12 && <TextInput type="search" aria-label="Find a field" placeholder="Find a field" value={find} onChange={setFind} />}
      <div className={css.steps}>
        {nodes.slice(0, 40).map((node) => (
          <Step
            key={node.node}
            title={node.title}
            fields={node.fields}
            open={Boolean(wanted) && nodes.length < 6}
            onShow={(key) => onChange(setShown(form, fields, key, true))}
          />
        ))}
      </div>
      {nodes.length > 40 && <p className={css.origin}>{nodes.length - 40} more steps. Type a part of their title to find them.</p>}

      <div className={css.foot}>
        <Button variant="primary" icon="check" onClick={onDone}>
          Done
        </Button>
        <Button variant="quiet" icon="undo" onClick={() => onChange({ ...defaultForm(fields, null), seeds: form.seeds })}>
          Start over
        </Button>
      </div>
    </div>
  );
}

function Step({ title, fields, open, onShow }: { title: string; fields: Field[]; open: boolean; onShow(key: string): void }) {
  const [isOpen, setOpen] = useState(open);
  return (
    <Disclosure key={String(open)} title={title} open={open} onToggle={setOpen} aside={String(fields.length)}>
      {(isOpen || open) && (
        <ul className={css.list}>
          {fields.map((field) => (
            <li key={field.key} className={css.row}>
              <span className={css.words}>{field.label}</span>
              <Button size="s" icon="plus" aria-label={`Show ${field.label} of ${title}`} onClick={() => onShow(field.key)}>
                Show
              </Button>
            </li>
          ))}
        </ul>
      )}
    </Disclosure>
  );
}
