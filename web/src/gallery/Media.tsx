// A file of a result in full: pictures to zoom, films and sounds to play, the rest to download.
import { viewUrl } from "../api/client";
import type { FileOutput } from "./outputs";
import { useState } from "react";
import { Icon } from "../ui";
import { Gone } from "./Thumb";
import { Zoomer } from "./Zoomer";
import type { Size } from "./zoom";
import css from "./Media.module.css";

export interface MediaProps {
  output: FileOutput;
  alt: string;
  onSwipe?(step: 1 | -1): void;
  onSize?(size: Size): void;
}

export function Media({ output, alt, onSwipe, onSize }: MediaProps) {
  const src = viewUrl(output.file);
  const [missing, setMissing] = useState<string | null>(null);
  if (missing === src)
    return (
      <div className={css.frame}>
        <Gone large />
      </div>
    );
  const gone = () => setMissing(src);
  switch (output.kind) {
    case "picture":
      return <Zoomer src={src} alt={alt} onSwipe={onSwipe} onSize={onSize} />;
    case "video":
      return (
        <div className={css.frame}>
          <video className={css.video} src={src} controls loop playsInline aria-label={alt} onError={gone} />
        </div>
      );
    case "audio":
      return (
        <div className={css.frame}>
          <Icon name="sound" size={48} />
          <audio src={src} controls aria-label={alt} onError={gone} />
        </div>
      );
    default:
      return (
        <div className={css.frame}>
          <Icon name="file" size={48} />
          <p className={css.name}>{output.file.filename}</p>
          <a className={css.get} href={src} download={output.file.filename}>
            Download this file
          </a>
        </div>
      );
  }
}
