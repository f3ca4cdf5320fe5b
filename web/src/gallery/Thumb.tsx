// A small picture of a file that never shows as broken: what is gone or no picture gets a drawn stand-in.
import { useEffect, useState } from "react";
import { viewUrl } from "../api/client";
import type { FileRef } from "../api/types";
import { Icon, type IconName } from "../ui";
import { kindOf, type OutputKind } from "./outputs";
import css from "./Thumb.module.css";

const ICONS: Record<OutputKind, IconName> = { picture: "image", video: "film", audio: "sound", model: "layers", file: "file" };
const WORDS: Record<OutputKind, string> = { picture: "Picture", video: "Video", audio: "Sound", model: "3D model", file: "File" };

/** Stands where a file was. */
export function Gone({ large }: { large?: boolean }) {
  return (
    <div className={large ? `${css.stand} ${css.large}` : css.stand}>
      <Icon name="imageOff" size={28} />
      <span>{large ? "The file of this picture is gone." : "File is gone"}</span>
    </div>
  );
}

export function Stand({ kind, name }: { kind: OutputKind; name?: string }) {
  return (
    <div className={css.stand}>
      <Icon name={ICONS[kind]} size={28} />
      <span>{name ?? WORDS[kind]}</span>
    </div>
  );
}

export function Thumb({ file, alt }: { file: FileRef; alt: string }) {
  const url = viewUrl(file, { preview: "webp", quality: 75 });
  const [missing, setMissing] = useState(false);
  useEffect(() => setMissing(false), [url]);
  const kind = kindOf(file.filename);
  if (kind !== "picture") return <Stand kind={kind} />;
  if (missing) return <Gone />;
  // A drawing has no preview; the browser draws it itself.
  const src = /\.svg$/i.test(file.filename) ? viewUrl(file) : url;
  return <img className={css.picture} src={src} alt={alt} loading="lazy" decoding="async" draggable={false} onError={() => setMissing(true)} />;
}
