// The id under which the server addresses events to this tab; kept over a reload so that a running job finds its page again.

const KEY = "fresco.client";
let current: string | null = null;

/** randomUUID exists only on secure pages; a plain address in the home network is none. */
export function freshId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

export function clientId(): string {
  if (current) return current;
  try {
    current = sessionStorage.getItem(KEY);
  } catch {
    // Storage may be forbidden: the id then lives as long as the page.
  }
  return current ?? renewClientId();
}

/** For a duplicated tab, which starts with a copy of the other's id. */
export function renewClientId(): string {
  current = freshId();
  try {
    sessionStorage.setItem(KEY, current);
  } catch {
    // See above.
  }
  return current;
}

/** How the workflows of Create begin: by it the server finds its jobs among any number of others. */
export const CREATE_WORKFLOWS = "c7ea7e00-";

/** An id in the form the other editor expects of a workflow. */
export function workflowId(hex = freshId()): string {
  return `${CREATE_WORKFLOWS}${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
