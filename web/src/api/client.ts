// Requests to the server: one place for tokens, errors and addresses.
import { clientId } from "./identity";
import type { ApiPrompt, FileRef, Inspection, NodeError, UiWorkflow } from "./types";

/** A refused or failed request. `status` is 0 where the server could not be reached. */
export class ApiError extends Error {
  status: number;
  type: string;
  details: string;
  nodeErrors?: Record<string, NodeError>;

  constructor(message: string, status: number, type = "error", details = "", nodeErrors?: Record<string, NodeError>) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.type = type;
    this.details = details;
    this.nodeErrors = nodeErrors;
  }
}

const unauthorised = new Set<() => void>();

/** Calls `fn` when the server asks for its token. */
export function onUnauthorised(fn: () => void): () => void {
  unauthorised.add(fn);
  return () => unauthorised.delete(fn);
}

const backAgain = new Set<() => void>();
let away = false;

/** Calls `fn` when the server answers again after it could not be reached. */
export function onBack(fn: () => void): () => void {
  backAgain.add(fn);
  return () => backAgain.delete(fn);
}

/** Makes an error of whatever a refused request was answered with: JSON in three shapes, text, or nothing. */
export function errorFrom(status: number, statusText: string, body: string): ApiError {
  // The window that asks for the token says the rest.
  if (status === 401) return new ApiError("Please sign in first", 401, "unauthorized");
  const plain = (message: string) => new ApiError(message, status);
  let json: unknown;
  try {
    json = JSON.parse(body);
  } catch {
    const text = body.trim();
    return plain(text && text.length < 300 && !text.startsWith("<") ? text : `The server answered ${status} ${statusText}`.trim());
  }
  if (typeof json !== "object" || json === null) return plain(typeof json === "string" ? json : `The server answered ${status}`);
  const { error, node_errors, message } = json as { error?: unknown; node_errors?: unknown; message?: unknown };
  const nodes =
    typeof node_errors === "object" && node_errors !== null && !Array.isArray(node_errors) && Object.keys(node_errors).length > 0
      ? (node_errors as Record<string, NodeError>)
      : undefined;
  if (typeof error === "object" && error !== null) {
    const e = error as { type?: unknown; message?: unknown; details?: unknown };
    return new ApiError(String(e.message ?? "The request failed"), status, String(e.type ?? "error"), String(e.details ?? ""), nodes);
  }
  if (typeof error === "string") return new ApiError(error, status, "error", "", nodes);
  return plain(typeof message === "string" ? message : `The server answered ${status}`);
}

/** Sends a request; throws ApiError unless it succeeded. */
export async function request(path: string, init?: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...init });
  } catch (e) {
    if (e instanceof DOMException && e.name === "AbortError") throw e;
    away = true;
    throw new ApiError("Fresco does not answer", 0, "network", e instanceof Error ? e.message : "");
  }
  if (away) {
    away = false;
    backAgain.forEach((fn) => fn());
  }
  if (answer.ok) return answer;
  if (answer.status === 401) unauthorised.forEach((fn) => fn());
  throw errorFrom(answer.status, answer.statusText, await answer.text().catch(() => ""));
}

async function jsonOf<T>(answer: Response): Promise<T> {
  const text = await answer.text();
  if (!text) return undefined as T;
  try {
    return JSON.parse(text) as T;
  } catch {
    // A few routes answer success with a plain line.
    return undefined as T;
  }
}

export async function getJson<T>(path: string, init?: RequestInit): Promise<T> {
  return jsonOf<T>(await request(path, init));
}

export async function sendJson<T>(method: "POST" | "PATCH" | "DELETE" | "PUT", path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.headers = { "content-type": "application/json" };
    init.body = JSON.stringify(body);
  }
  return jsonOf<T>(await request(path, init));
}

/** Address of a stored file, or of a smaller preview of it. */
export function viewUrl(file: FileRef, opts?: { preview?: "webp" | "jpeg"; quality?: number }): string {
  const query = new URLSearchParams({ filename: file.filename, subfolder: file.subfolder ?? "", type: file.type });
  if (opts?.preview) query.set("preview", `${opts.preview};${opts.quality ?? 80}`);
  return `/api/view?${query}`;
}

interface Uploaded {
  name: string;
  subfolder: string;
  type: FileRef["type"];
}

async function upload(path: string, form: FormData): Promise<FileRef> {
  const done = await jsonOf<Uploaded>(await request(path, { method: "POST", body: form }));
  return { filename: done.name, subfolder: done.subfolder ?? "", type: done.type };
}

/** Stores a picture in the input folder. */
export async function uploadImage(blob: Blob, name: string, opts?: { overwrite?: boolean; subfolder?: string }): Promise<FileRef> {
  const form = new FormData();
  form.append("image", blob, name);
  form.append("type", "input");
  if (opts?.subfolder) form.append("subfolder", opts.subfolder);
  if (opts?.overwrite) form.append("overwrite", "true");
  return upload("/api/upload/image", form);
}

/** Stores a copy of `original` that carries the alpha of `blob`. */
export async function uploadMask(blob: Blob, original: FileRef, name: string): Promise<FileRef> {
  const form = new FormData();
  form.append("image", blob, name);
  form.append("original_ref", JSON.stringify(original));
  form.append("type", "input");
  form.append("overwrite", "true");
  return upload("/api/upload/mask", form);
}

/** Queues a prompt under this page's client id. */
export async function queuePrompt(
  prompt: ApiPrompt,
  opts?: { workflow?: UiWorkflow; front?: boolean; extra?: Record<string, unknown> },
): Promise<{ prompt_id: string; nodeErrors?: Record<string, NodeError> }> {
  // Seeing a picture grow is wanted on every view; a server may have previews switched off for its other clients.
  const extra: Record<string, unknown> = { preview_method: "auto", ...opts?.extra };
  if (opts?.workflow) extra.extra_pnginfo = { ...(extra.extra_pnginfo as object | undefined), workflow: opts.workflow };
  const body: Record<string, unknown> = { prompt, client_id: clientId(), extra_data: extra };
  if (opts?.front) body.front = true;
  const done = await sendJson<{ prompt_id: string; node_errors?: Record<string, NodeError> }>("POST", "/api/prompt", body);
  // Outputs that cannot run are left out and told, while the others run.
  const told = done.node_errors && Object.keys(done.node_errors).length > 0 ? { nodeErrors: done.node_errors } : {};
  return { prompt_id: done.prompt_id, ...told };
}

/** Asks what a workflow file holds and what it lacks here. */
export async function inspectWorkflow(data: Blob | object): Promise<Inspection> {
  const body = data instanceof Blob ? data : new Blob([JSON.stringify(data)], { type: "application/json" });
  return jsonOf<Inspection>(await request("/fresco/workflow", { method: "POST", body }));
}

const userPath = (path: string) => `/api/userdata/${encodeURIComponent(path)}`;

interface UserEntry {
  path: string;
  type: "file" | "directory";
}

/** Paths of the user's files, from the last time they were listed. */
let listed = new Set<string>();
let listing: Promise<Set<string>> | null = null;

/** All files of the user. Asking for a folder or file that may not be there is answered with an error, which every browser
 *  writes into its console; the list of everything is always there. */
function listUser(): Promise<Set<string>> {
  listing ??= getJson<UserEntry[]>("/api/v2/userdata")
    .then((entries) => (listed = new Set((Array.isArray(entries) ? entries : []).filter((e) => e.type === "file").map((e) => e.path))))
    .finally(() => {
      listing = null;
    });
  return listing;
}

/** JSON files of the user, like `fresco/apps/NAME.json`. */
export const userdata = {
  /** Names below `dir`; none where the folder is not there yet. */
  async list(dir: string): Promise<string[]> {
    const below = `${dir}/`;
    return [...(await listUser())].filter((path) => path.startsWith(below)).map((path) => path.slice(below.length));
  },
  /** The file, or null where there is none. */
  async read<T>(path: string): Promise<T | null> {
    if (!listed.has(path) && !(await listUser()).has(path)) return null;
    try {
      return (await getJson<T>(userPath(path))) ?? null;
    } catch (e) {
      // Deleted since it was listed.
      if (e instanceof ApiError && e.status === 404) return null;
      throw e;
    }
  },
  async write(path: string, value: unknown): Promise<void> {
    await sendJson("POST", `${userPath(path)}?overwrite=true`, value);
    listed.add(path);
  },
  async remove(path: string): Promise<void> {
    await sendJson("DELETE", userPath(path));
  },
};

/** How LoadImage and its kin name a file that is not in the input folder. */
export function annotated(file: FileRef): string {
  const path = file.subfolder ? `${file.subfolder}/${file.filename}` : file.filename;
  return file.type === "input" ? path : `${path} [${file.type}]`;
}
