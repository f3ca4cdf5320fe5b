// Addresses inside the gallery: the grid, one result, or two side by side.

export interface Side {
  job: string;
  /** Which of the job's files. */
  file: number;
}

export type Route = { page: "grid" } | { page: "detail"; job: string } | { page: "compare"; a: Side; b: Side };

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** `#/gallery`, `#/gallery/JOB`, `#/gallery/compare/JOB.0/JOB.2`; a side without a number means its first file. */
export function parseRoute(hash: string): Route {
  const [, view, first, a, b] = (hash.split("?")[0] ?? "").split("/");
  if (view !== "gallery" || !first) return { page: "grid" };
  if (first === "compare" && a && b) return { page: "compare", a: side(a), b: side(b) };
  return { page: "detail", job: decoded(first) };
}

function side(part: string): Side {
  const [, job, file] = /^(.*?)(?:\.(\d{1,4}))?$/.exec(part) ?? [];
  return { job: decoded(job ?? part), file: Number(file ?? 0) };
}

/** A dot in an id would read as a file number, so it is written out. */
const encoded = (id: string) => encodeURIComponent(id).replaceAll(".", "%2E");

export function detailHash(job: string): string {
  return `#/gallery/${encoded(job)}`;
}

export function compareHash(a: Side, b: Side): string {
  const part = ({ job, file }: Side) => encoded(job) + (file > 0 ? `.${file}` : "");
  return `#/gallery/compare/${part(a)}/${part(b)}`;
}
