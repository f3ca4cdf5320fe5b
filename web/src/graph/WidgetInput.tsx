// One value of a node as a control; small on the node itself, large in the inspector.
import { memo, useEffect, useRef, useState } from "react";
import { uploadImage } from "../api/client";
import { useInfo } from "../state/info";
import { Icon, toast } from "../ui";
import { stepped, takeNumber } from "./numbers";
import { openPicker } from "./Picker";
import type { Row } from "./rows";
import { useGraph } from "./store";
import { CONTROLS } from "./widgets";
import css from "./WidgetInput.module.css";

interface Props {
  row: Row;
  node: string; // for the tag that joins typing into one step
  large?: boolean;
  error?: string | undefined;
}

/** In place of a stored value that a link overrides: nothing is shown that is not used. */
const LINKED = "from the link";

const text = (v: unknown): string => (typeof v === "string" ? v : v == null ? "" : typeof v === "object" ? JSON.stringify(v) : String(v));

function NumberBox({ row, change, label }: { row: Row; change(v: unknown): void; label: string }) {
  const [draft, setDraft] = useState<string | null>(null);
  const commit = () => {
    if (draft === null) return;
    const n = takeNumber(row.spec, draft);
    if (n !== undefined && n !== row.value) change(n);
    setDraft(null);
  };
  return (
    <input
      className={css.number}
      aria-label={label}
      inputMode={row.spec.kind === "int" ? "numeric" : "decimal"}
      value={row.linked ? "" : (draft ?? text(row.value))}
      placeholder={row.linked ? LINKED : undefined}
      disabled={row.linked}
      onChange={(e) => setDraft(e.target.value)}
      onFocus={(e) => e.target.select()}
      onBlur={commit}
      onKeyDown={(e) => {
        if (e.key === "Enter") commit();
        else if (e.key === "Escape") setDraft(null);
        else if (e.key === "ArrowUp" || e.key === "ArrowDown") {
          e.preventDefault();
          const by = (e.key === "ArrowUp" ? 1 : -1) * (e.shiftKey ? 10 : 1);
          change(stepped(row.spec, draft === null ? row.value : (takeNumber(row.spec, draft) ?? row.value), by));
          setDraft(null);
        }
      }}
    />
  );
}

/** Keeps what is typed at hand and writes it into the document at once; undo takes the whole of it back. */
function TextBox({ row, change, label, multiline }: { row: Row; change(v: unknown): void; label: string; multiline: boolean }) {
  const Tag = multiline ? "textarea" : "input";
  const placeholder = typeof row.spec.options.placeholder === "string" ? row.spec.options.placeholder : undefined;
  return (
    <Tag
      className={multiline ? `${css.area} nowheel` : css.text}
      aria-label={label}
      value={row.linked ? "" : text(row.value)}
      placeholder={row.linked ? LINKED : (placeholder ?? (multiline ? row.label : undefined))}
      disabled={row.linked}
      spellCheck={false}
      onChange={(e) => change(e.target.value)}
    />
  );
}

/** Widget types the page has no control for: text stays text, anything else is written as JSON. */
function OtherBox({ row, change, label }: { row: Row; change(v: unknown): void; label: string }) {
  const [draft, setDraft] = useState<string | null>(null);
  if (row.spec.type === "COLOR") {
    const now = text(row.value);
    return (
      <span className={css.colour}>
        <input
          type="color"
          aria-label={label}
          value={/^#[0-9a-f]{6}$/i.test(now) ? now : "#000000"}
          disabled={row.linked}
          onChange={(e) => change(e.target.value)}
        />
        <TextBox row={row} change={change} label={`${label} as text`} multiline={false} />
      </span>
    );
  }
  const commit = () => {
    if (draft === null) return;
    let next: unknown = draft;
    if (typeof row.value !== "string") {
      try {
        next = JSON.parse(draft);
      } catch {
        next = draft;
      }
    }
    if (text(next) !== text(row.value)) change(next);
    setDraft(null);
  };
  return (
    <input
      className={css.text}
      aria-label={label}
      value={row.linked ? "" : (draft ?? text(row.value))}
      placeholder={row.linked ? LINKED : undefined}
      disabled={row.linked}
      onChange={(e) => setDraft(e.target.value)}
      onBlur={commit}
    />
  );
}

function ComboBox({ row, change, label }: { row: Row; change(v: unknown): void; label: string }) {
  const { choices } = row.spec;
  const many = Boolean(row.spec.options.multiselect ?? row.spec.options.multi_select);
  const known = row.linked || many || choices.length === 0 || choices.some((c) => c === row.value || text(c) === text(row.value));
  if (choices.length === 0) return <TextBox row={row} change={change} label={label} multiline={false} />;
  const shown = row.linked ? LINKED : many && Array.isArray(row.value) ? row.value.map(text).join(", ") : text(row.value);
  return (
    <button
      type="button"
      className={css.combo}
      aria-haspopup="listbox"
      aria-label={`${label}: ${shown || "nothing chosen"}`}
      aria-invalid={!known || undefined}
      title={known ? shown : `${shown} is not here`}
      disabled={row.linked}
      onClick={(e) => openPicker({ anchor: e.currentTarget, label, choices, value: row.value, many, change })}
    >
      <span>{shown || "choose…"}</span>
      <Icon name="chevron" size={14} />
    </button>
  );
}

function UploadButton({ row, change }: { row: Row; change(v: unknown): void }) {
  const file = useRef<HTMLInputElement>(null);
  const [busy, setBusy] = useState(false);
  return (
    <>
      <button type="button" className={css.upload} disabled={busy} onClick={() => file.current?.click()}>
        <Icon name="upload" size={14} /> {busy ? "Uploading…" : "Choose a picture"}
      </button>
      <input
        ref={file}
        type="file"
        hidden
        accept="image/*,video/*,audio/*"
        aria-label={`File for ${row.label}`}
        onChange={(e) => {
          const chosen = e.target.files?.[0];
          e.target.value = "";
          if (!chosen) return;
          setBusy(true);
          void uploadTo(chosen, change).finally(() => setBusy(false));
        }}
      />
    </>
  );
}

/** Stores a picture with the other inputs and sets it as the value. */
export async function uploadTo(file: File, change: (v: unknown) => void): Promise<void> {
  try {
    const stored = await uploadImage(file, file.name || "picture.png");
    change(stored.subfolder ? `${stored.subfolder}/${stored.filename}` : stored.filename);
    void useInfo
      .getState()
      .reload()
      .catch(() => undefined);
  } catch (e) {
    toast(e instanceof Error ? e.message : "The picture could not be stored.", "bad");
  }
}

/** What a value can do after a run; a mode of another editor stays in view. */
const modes = (kind: string, now: string | null | undefined): string[] => {
  const known = [...CONTROLS, ...(kind === "combo" ? ["increment-wrap"] : [])];
  return !now || known.includes(now) ? known : [now, ...known];
};

export const uploads = (row: Row): boolean =>
  Boolean(row.spec.options.image_upload ?? row.spec.options.video_upload ?? row.spec.options.audio_upload ?? row.spec.options.file_upload);

export const WidgetInput = memo(function WidgetInput({ row, node, large, error }: Props) {
  const change = (value: unknown) => useGraph.getState().edit((doc) => row.set(doc, value), `${node}/${row.key}`);
  const { kind } = row.spec;
  const label = row.label;
  const tip = typeof row.spec.options.tooltip === "string" ? row.spec.options.tooltip : undefined;
  const stacked = kind === "multiline";
  const [mode, setMode] = useState(row.control);
  useEffect(() => setMode(row.control), [row.control]);
  return (
    <div
      className={`${css.widget} ${large ? css.large : css.small} ${stacked ? css.stacked : ""} ${row.linked ? css.linked : ""} ${error ? css.bad : ""} nodrag`}
      title={error ?? tip}
    >
      {(!stacked || large) && (
        <span className={css.label} aria-hidden="true">
          {label}
        </span>
      )}
      {(kind === "int" || kind === "float") && <NumberBox row={row} change={change} label={label} />}
      {(kind === "text" || kind === "multiline") && <TextBox row={row} change={change} label={label} multiline={stacked} />}
      {kind === "other" && <OtherBox row={row} change={change} label={label} />}
      {kind === "combo" && <ComboBox row={row} change={change} label={label} />}
      {kind === "bool" && (
        <button
          type="button"
          role="switch"
          aria-checked={!row.linked && Boolean(row.value)}
          aria-label={label}
          className={css.switch}
          disabled={row.linked}
          onClick={() => change(!row.value)}
        >
          <span>{row.linked ? LINKED : text(row.value ? (row.spec.options.label_on ?? "yes") : (row.spec.options.label_off ?? "no"))}</span>
          <i aria-hidden="true" />
        </button>
      )}
      {row.control !== null && !row.linked && (
        <label className={css.control}>
          <span className={css.label}>after a run</span>
          <select
            value={mode ?? "fixed"}
            aria-label={`${label} after a run`}
            onChange={(e) => {
              setMode(e.target.value);
              useGraph.getState().edit((doc) => row.setControl(doc, e.target.value));
            }}
          >
            {modes(kind, mode).map((c) => (
              <option key={c} value={c}>
                {c}
              </option>
            ))}
          </select>
        </label>
      )}
      {uploads(row) && !row.linked && <UploadButton row={row} change={change} />}
      {large && error && (
        <span className={css.error} role="alert">
          {error}
        </span>
      )}
    </div>
  );
});
