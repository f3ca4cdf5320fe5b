// Undo and redo: a bounded list of past documents. Documents share their unchanged parts, so a step costs little.

export interface History<T> {
  past: T[];
  present: T;
  future: T[];
  tag: string; // edits with the same tag in a row become one step, such as typing in one field
}

const LIMIT = 200;

export function started<T>(present: T): History<T> {
  return { past: [], present, future: [], tag: "" };
}

export function pushed<T>(history: History<T>, next: T, tag = ""): History<T> {
  if (next === history.present) return history;
  if (tag !== "" && tag === history.tag && history.past.length > 0) return { ...history, present: next, future: [] };
  return { past: [...history.past, history.present].slice(-LIMIT), present: next, future: [], tag };
}

export function undone<T>(history: History<T>): History<T> {
  const previous = history.past.at(-1);
  if (previous === undefined) return history;
  return { past: history.past.slice(0, -1), present: previous, future: [history.present, ...history.future], tag: "" };
}

export function redone<T>(history: History<T>): History<T> {
  const [next, ...rest] = history.future;
  if (next === undefined) return history;
  return { past: [...history.past, history.present], present: next, future: rest, tag: "" };
}
