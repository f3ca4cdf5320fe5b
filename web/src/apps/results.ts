// What a run gave: pictures, films, sounds, texts and other files, read from the outputs of its nodes.
import { isFileRef } from "../api/files";
import type { FileRef, NodeOutput } from "../api/types";

export type ResultKind = "picture" | "video" | "audio" | "file";

export interface ResultFile {
  kind: ResultKind;
  file: FileRef;
  node: string;
}

export interface ResultText {
  node: string;
  text: string;
}

export interface Results {
  files: ResultFile[];
  texts: ResultText[];
}

/** Longer texts are cut on the page. */
export const textLimit = 20_000;

function kindOf(file: FileRef, media: string): ResultKind {
  if (/\.(png|jpe?g|webp|gif|avif|bmp|svg)$/i.test(file.filename)) return "picture";
  if (/\.(mp4|webm|mov|mkv|m4v)$/i.test(file.filename)) return "video";
  if (/\.(mp3|wav|flac|ogg|opus|m4a)$/i.test(file.filename)) return "audio";
  return media === "audio" ? "audio" : "file";
}

/** Stored results first; temporary pictures only where their node is all there is. */
export function resultsOf(outputs: Record<string, NodeOutput> | undefined): Results {
  const files: ResultFile[] = [];
  const texts: ResultText[] = [];
  const seen = new Set<string>();
  for (const [node, output] of Object.entries(outputs ?? {})) {
    for (const [media, list] of Object.entries(output ?? {})) {
      if (media === "animated") continue;
      for (const item of Array.isArray(list) ? list : [list]) {
        if (isFileRef(item)) {
          const file: FileRef = { filename: item.filename, subfolder: item.subfolder ?? "", type: item.type };
          const mark = `${file.type}/${file.subfolder}/${file.filename}`;
          if (!seen.has(mark)) files.push({ kind: kindOf(file, media), file, node });
          seen.add(mark);
        } else if (/^(text|string|texts|value|result)$/.test(media) && (typeof item === "string" || typeof item === "number" || typeof item === "boolean")) {
          const text = String(item);
          if (text.trim()) texts.push({ node, text: text.length > textLimit ? `${text.slice(0, textLimit)}…` : text });
        }
      }
    }
  }
  return { files: [...files.filter((f) => f.file.type !== "temp"), ...files.filter((f) => f.file.type === "temp")], texts };
}

/** The picture that stands for a run, if there is one that stays. */
export function thumbnailOf(results: Results): FileRef | null {
  return results.files.find((f) => f.kind === "picture" && f.file.type === "output")?.file ?? null;
}
