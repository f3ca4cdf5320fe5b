// A place to drop, paste or choose a file.
import { type ReactNode, useId, useRef, useState } from "react";
import { Icon, type IconName } from "./Icon";
import css from "./DropZone.module.css";

export interface DropZoneProps {
  /** As for a file input, like `image/*` or `.json,image/png`. */
  accept: string;
  onFile(file: File): void;
  label: string;
  hint?: ReactNode;
  icon?: IconName;
  compact?: boolean;
}

/** Whether a file is of a kind the zone takes. */
export function accepted(file: { name: string; type: string }, accept: string): boolean {
  return accept
    .split(",")
    .map((a) => a.trim().toLowerCase())
    .filter(Boolean)
    .some((a) => {
      if (a.startsWith(".")) return file.name.toLowerCase().endsWith(a);
      if (a.endsWith("/*")) return file.type.startsWith(a.slice(0, -1));
      return file.type === a;
    });
}

export function DropZone({ accept, onFile, label, hint, icon = "upload", compact }: DropZoneProps) {
  const id = useId();
  const input = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  const [wrong, setWrong] = useState(false);
  const take = (file: File | undefined | null) => {
    if (!file) return;
    const fits = accepted(file, accept);
    setWrong(!fits);
    if (fits) onFile(file);
  };
  return (
    <div
      className={`${css.zone} ${over ? css.over : ""} ${compact ? css.compact : ""}`}
      onDragEnter={(e) => {
        e.preventDefault();
        setOver(true);
      }}
      onDragOver={(e) => e.preventDefault()}
      onDragLeave={(e) => {
        if (!e.currentTarget.contains(e.relatedTarget as Node | null)) setOver(false);
      }}
      onDrop={(e) => {
        e.preventDefault();
        e.stopPropagation();
        setOver(false);
        take(e.dataTransfer.files[0]);
      }}
      onPaste={(e) => take(e.clipboardData.files[0])}
    >
      <input
        ref={input}
        id={id}
        type="file"
        accept={accept}
        className={css.input}
        aria-describedby={`${id}-hint`}
        onChange={(e) => {
          take(e.target.files?.[0]);
          e.target.value = "";
        }}
      />
      <label htmlFor={id} className={css.label}>
        <Icon name={icon} size={compact ? 20 : 26} />
        <span className={css.words}>{label}</span>
      </label>
      <div id={`${id}-hint`} className={wrong ? css.wrong : css.hint} role={wrong ? "alert" : undefined}>
        {wrong ? "This kind of file cannot be used here." : hint}
      </div>
    </div>
  );
}
