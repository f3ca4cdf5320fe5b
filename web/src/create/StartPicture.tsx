// The picture to start from: dropped, pasted or chosen; how much of it may change, and where.
import { useEffect, useRef, useState } from "react";
import { viewUrl } from "../api/client";
import { Button, DropZone, Field, IconButton, Slider } from "../ui";
import { usePainter } from "./painter";
import { type CreateValues, modeOf, withMask, withoutImage } from "./values";
import css from "./StartPicture.module.css";

export interface StartPictureProps {
  values: CreateValues;
  set(patch: Partial<CreateValues>): void;
  update(change: (v: CreateValues) => CreateValues): void;
  onFile(file: File): void;
  busy: boolean;
  error?: string;
}

/** What a strength means, in words. */
export function changeWords(denoise: number): string {
  if (denoise < 0.25) return "Hardly at all";
  if (denoise < 0.5) return "Details only";
  if (denoise < 0.75) return "Clearly, but the layout stays";
  if (denoise < 0.95) return "Almost everything";
  return "Everything";
}

export function StartPicture({ values, set, update, onFile, busy, error }: StartPictureProps) {
  const start = usePainter((s) => s.start);
  const paint = () => start();
  const [gone, setGone] = useState<string | null>(null);
  const [removed, setRemoved] = useState(false);
  const zone = useRef<HTMLDivElement>(null);
  // The button that was pressed is gone; the focus goes to what took its place.
  useEffect(() => {
    if (removed && !values.image) zone.current?.querySelector("input")?.focus({ preventScroll: true });
    setRemoved(false);
  }, [removed, values.image]);
  if (!values.image) {
    return (
      <div ref={zone}>
        <DropZone
          compact
          accept="image/*"
          onFile={onFile}
          icon="image"
          label={busy ? "Sending the picture…" : "Start from a picture"}
          hint="Optional: drop, paste or choose one"
        />
        {error && (
          <p className={css.error} role="alert">
            {error}
          </p>
        )}
      </div>
    );
  }
  const area = modeOf(values) === "area";
  const url = viewUrl(values.mask ?? values.image);
  return (
    <section className={css.start} aria-label="Start picture">
      <div className={css.top}>
        <button type="button" className={css.thumb} onClick={paint} title="Paint the area to change">
          {gone === url ? (
            <span>The file is gone</span>
          ) : (
            <img src={url} alt={area ? "Start picture; the transparent part will change" : "Start picture"} onError={() => setGone(url)} />
          )}
        </button>
        <div className={css.side}>
          <p className={css.what}>{area ? "Only the painted area changes" : "Starts from this picture"}</p>
          <div className={css.buttons}>
            <Button size="s" icon="brush" onClick={paint}>
              {area ? "Change the area" : "Paint an area"}
            </Button>
            {area && (
              <Button size="s" variant="quiet" onClick={() => update((v) => withMask(v, null))}>
                Whole picture
              </Button>
            )}
          </div>
        </div>
        <IconButton
          label="Remove the start picture"
          icon="close"
          onClick={() => {
            setRemoved(true);
            update(withoutImage);
          }}
        />
      </div>
      <Field label="How much to change" hint={changeWords(values.denoise)} error={error}>
        <Slider value={values.denoise} min={0.05} max={1} step={0.05} onChange={(denoise) => set({ denoise })} />
      </Field>
    </section>
  );
}
