// A stored picture, loaded when it comes into sight.
import { type CSSProperties, useState } from "react";
import { viewUrl } from "../api/client";
import type { FileRef } from "../api/types";
import { Icon } from "./Icon";
import css from "./Picture.module.css";

export interface PictureProps {
  file: FileRef;
  alt: string;
  /** A smaller copy is enough, e.g. in a grid. */
  preview?: boolean;
  className?: string;
  style?: CSSProperties;
  eager?: boolean;
}

export function Picture({ file, alt, preview, className, style, eager }: PictureProps) {
  const url = viewUrl(file, preview ? { preview: "webp", quality: 80 } : undefined);
  const [broken, setBroken] = useState<string | null>(null);
  if (broken === url) {
    return (
      <span className={[css.broken, className].filter(Boolean).join(" ")} style={style} role="img" aria-label={`${alt} (the file is gone)`}>
        <Icon name="image" size={28} />
        <span aria-hidden="true">The file is gone</span>
      </span>
    );
  }
  return (
    <img
      src={url}
      alt={alt}
      loading={eager ? "eager" : "lazy"}
      decoding="async"
      className={[css.picture, className].filter(Boolean).join(" ")}
      style={style}
      onError={() => setBroken(url)}
    />
  );
}
