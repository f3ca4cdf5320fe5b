// What a finished job left behind, read from its `outputs`: pictures, films, sounds, texts and other files, in a fixed order.
import type { FileRef } from "../api/types";

export type OutputKind = "picture" | "video" | "audio" | "model" | "file";

export interface FileOutput {
  kind: OutputKind;
  file: FileRef;
  node: string;
  animated: boolean;
}

export interface Outputs {
  files: FileOutput[];
  texts: { node: string; text: string }[];
}

const ENDINGS: [OutputKind, RegExp][] = [
  ["video", /\.(mp4|webm|mkv|mov|m4v|avi)$/i],
  ["audio", /\.(flac|mp3|wav|ogg|opus|m4a|aac)$/i],
  ["model", /\.(glb|gltf|obj|fbx|stl|ply)$/i],
  ["picture", /\.(png|jpe?g|webp|gif|bmp|avif|svg|tiff?)$/i],
];

/** The kind of a file: its ending decides, the format or the key that the node filed it under where the ending says nothing. */
export function kindOf(filename: string, key = "", format = ""): OutputKind {
  for (const [kind, ending] of ENDINGS) if (ending.test(filename)) return kind;
  if (format.startsWith("video/") || key === "video") return "video";
  if (format.startsWith("audio/") || key === "audio") return "audio";
  return "file";
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A file as a node names it, or null where the value is something else. */
export function fileRef(value: unknown): FileRef | null {
  if (!isRecord(value) || typeof value.filename !== "string" || value.filename === "") return null;
  const type = value.type === "input" || value.type === "temp" ? value.type : "output";
  return { filename: value.filename, subfolder: typeof value.subfolder === "string" ? value.subfolder : "", type };
}

/** All outputs; files kept for good come before those of the temporary folder. */
export function readOutputs(outputs: unknown): Outputs {
  const files: FileOutput[] = [];
  const texts: Outputs["texts"] = [];
  const seen = new Set<string>();
  for (const [node, ui] of Object.entries(isRecord(outputs) ? outputs : {})) {
    if (!isRecord(ui)) continue;
    const animated = Array.isArray(ui.animated) ? ui.animated.some(Boolean) : ui.animated === true;
    for (const [key, list] of Object.entries(ui)) {
      if (key === "animated" || key === "warnings" || !Array.isArray(list)) continue;
      for (const item of list) {
        const file = fileRef(item);
        if (file) {
          const name = fileKey(file);
          if (seen.has(name)) continue;
          seen.add(name);
          const format = isRecord(item) && typeof item.format === "string" ? item.format : "";
          files.push({ kind: kindOf(file.filename, key, format), file, node, animated });
        } else if (typeof item === "string" && item !== "") {
          texts.push({ node, text: item });
        }
      }
    }
  }
  const kept = files.filter((f) => f.file.type !== "temp");
  return { files: [...kept, ...files.filter((f) => f.file.type === "temp")], texts };
}

/** One text that names a file; the same for the same file. */
export function fileKey(file: FileRef): string {
  return `${file.type}/${file.subfolder}/${file.filename}`;
}
