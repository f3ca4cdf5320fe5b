// What differs between the settings of two results.
import type { ApiPrompt } from "../api/types";
import { isLink, shown, type Setting, titleOf } from "./settings";

export interface Difference {
  name: string;
  a: string;
  b: string;
}

const NONE = "not used";

/** Named settings first; then node inputs that differ and are not one of those already. */
export function differences(a: { settings: readonly Setting[]; prompt: ApiPrompt }, b: { settings: readonly Setting[]; prompt: ApiPrompt }): Difference[] {
  const out: Difference[] = [];
  const names = [...new Set([...a.settings, ...b.settings].map((s) => s.name))];
  for (const name of names) {
    const find = (side: readonly Setting[]) => side.find((s) => s.name === name)?.value ?? NONE;
    const [x, y] = [find(a.settings), find(b.settings)];
    if (x !== y) out.push({ name, a: x, b: y });
  }
  const told = new Set(out.map((d) => `${d.a}\n${d.b}`));
  const ids = [...new Set([...Object.keys(a.prompt), ...Object.keys(b.prompt)])].sort((x, y) => x.localeCompare(y, "en", { numeric: true }));
  for (const id of ids) {
    const [x, y] = [a.prompt[id], b.prompt[id]];
    if (!x || !y || x.class_type !== y.class_type) {
      if (x?.class_type !== y?.class_type) out.push({ name: `Node ${id}`, a: x ? titleOf(x) : NONE, b: y ? titleOf(y) : NONE });
      continue;
    }
    for (const input of [...new Set([...Object.keys(x.inputs), ...Object.keys(y.inputs)])]) {
      const side = (value: unknown) => (value === undefined ? NONE : isLink(value) ? `from node ${value[0]}` : shown(value));
      const [p, q] = [side(x.inputs[input]), side(y.inputs[input])];
      if (p !== q && !told.has(`${p}\n${q}`)) out.push({ name: `${titleOf(x)}: ${input}`, a: p, b: q });
    }
  }
  return out;
}
