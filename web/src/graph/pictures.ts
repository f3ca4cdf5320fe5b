// Which pictures a node shows: what it made, what it loads.
import type { FileRef, NodeOutput } from "../api/types";
import type { Row } from "./rows";

const FOLDERS = ["input", "output", "temp"] as const;

/** Reads how LoadImage names a file: a path, with its folder in brackets where that is not the input folder. */
export function fileFrom(value: unknown): FileRef | null {
  if (typeof value !== "string" || value === "") return null;
  const found = /^(.*?)(?: \[(input|output|temp)\])?$/.exec(value);
  const path = (found?.[1] ?? value).replaceAll("\\", "/");
  const cut = path.lastIndexOf("/");
  const type = FOLDERS.find((f) => f === found?.[2]) ?? "input";
  return { filename: path.slice(cut + 1), subfolder: cut < 0 ? "" : path.slice(0, cut), type };
}

const isFile = (v: unknown): v is FileRef => typeof v === "object" && v !== null && typeof (v as FileRef).filename === "string";

/** Pictures, films and sounds among a node's results. */
export function resultFiles(output: NodeOutput | undefined): FileRef[] {
  if (!output) return [];
  return ["images", "gifs", "video", "audio"].flatMap((key) => (Array.isArray(output[key]) ? (output[key] as unknown[]).filter(isFile) : []));
}

/** Words among a node's results. */
export function resultText(output: NodeOutput | undefined): string {
  const text = output?.text;
  if (Array.isArray(text)) return text.map(String).join("\n");
  return typeof text === "string" ? text : "";
}

/** The picture a loading node has chosen. */
export function chosenFile(rows: readonly Row[]): FileRef | null {
  const row = rows.find((r) => r.spec.options.image_upload && !r.linked);
  const file = row ? fileFrom(row.value) : null;
  if (!file) return null;
  const folder = row?.spec.options.image_folder;
  return file.type === "input" && (folder === "output" || folder === "temp") ? { ...file, type: folder } : file;
}
