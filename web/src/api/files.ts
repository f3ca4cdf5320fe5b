// Files in job outputs, and names in the form nodes use.
import type { FileRef, JobDetails, OutputFile } from "./types";

export function isFileRef(value: unknown): value is FileRef {
  if (typeof value !== "object" || value === null) return false;
  const v = value as Record<string, unknown>;
  return typeof v.filename === "string" && v.filename !== "" && (v.type === "output" || v.type === "input" || v.type === "temp");
}

/** All files of a job, stored ones before temporary ones, each once. */
export function filesOf(details: JobDetails): FileRef[] {
  const seen = new Set<string>();
  const files: OutputFile[] = [];
  for (const [nodeId, output] of Object.entries(details.outputs ?? {})) {
    for (const [mediaType, list] of Object.entries(output ?? {})) {
      if (!Array.isArray(list)) continue;
      for (const item of list) {
        if (!isFileRef(item)) continue;
        const file = { filename: item.filename, subfolder: item.subfolder ?? "", type: item.type, nodeId, mediaType };
        const key = `${file.type}/${file.subfolder}/${file.filename}`;
        if (!seen.has(key)) files.push(file);
        seen.add(key);
      }
    }
  }
  return [...files.filter((f) => f.type !== "temp"), ...files.filter((f) => f.type === "temp")];
}

export function isPicture(file: FileRef): boolean {
  return /\.(png|jpe?g|webp|gif|avif|bmp)$/i.test(file.filename);
}

/** Reads `sub/name.png [output]` back; without a mark the file is in the input folder. */
export function fromAnnotated(text: string): FileRef {
  const match = /^(.*?)(?: \[(output|input|temp)\])?$/s.exec(text);
  const path = match?.[1] ?? text;
  const cut = path.lastIndexOf("/");
  return {
    filename: path.slice(cut + 1),
    subfolder: cut < 0 ? "" : path.slice(0, cut),
    type: (match?.[2] as FileRef["type"] | undefined) ?? "input",
  };
}
