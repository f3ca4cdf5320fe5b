// Downloads: one file, several one by one, or several in one archive made in the browser.
import { request, viewUrl } from "../api/client";
import type { FileRef } from "../api/types";
import { uniqueNames, type ZipEntry, zipParts } from "./zip";

function save(url: string, name: string) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}

export function downloadOne(file: FileRef): void {
  save(viewUrl(file), file.filename);
}

/** Each as its own file; the browser may ask whether that is wanted. */
export async function downloadEach(files: readonly FileRef[]): Promise<void> {
  for (const file of files) {
    downloadOne(file);
    // Browsers drop downloads that start in the same moment.
    await new Promise((done) => setTimeout(done, 250));
  }
}

export function archiveName(now: Date): string {
  return `fresco-${now.toISOString().slice(0, 19).replace(/[-:]/g, "").replace("T", "-")}.zip`;
}

/** All in one archive; answers the names of files that could not be read. */
export async function downloadZip(files: readonly FileRef[], progress: (done: number) => void): Promise<string[]> {
  const names = uniqueNames(files.map((f) => f.filename));
  const entries: ZipEntry[] = [];
  const missing: string[] = [];
  for (const [i, file] of files.entries()) {
    try {
      const answer = await request(viewUrl(file));
      entries.push({
        name: names[i] as string,
        data: new Uint8Array(await answer.arrayBuffer()),
        time: new Date(answer.headers.get("last-modified") ?? Date.now()),
      });
    } catch {
      missing.push(file.filename);
    }
    progress(i + 1);
  }
  if (entries.length === 0) return missing;
  const url = URL.createObjectURL(new Blob(zipParts(entries), { type: "application/zip" }));
  save(url, archiveName(new Date()));
  // The download has its own hold on the bytes after a moment.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  return missing;
}
