// Small facts about prompts in the API form.
import type { ApiLink, ApiPrompt, InputSpec, NodeInfo } from "./types";

export function isLink(value: unknown): value is ApiLink {
  return Array.isArray(value) && value.length === 2 && typeof value[0] === "string" && typeof value[1] === "number";
}

export function isApiPrompt(value: unknown): value is ApiPrompt {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const nodes = Object.values(value);
  return nodes.length > 0 && nodes.every((n) => typeof n === "object" && n !== null && typeof (n as { class_type?: unknown }).class_type === "string");
}

/** Required, then optional inputs, in the order the server gives. */
export function inputsOf(info: NodeInfo): [string, InputSpec, boolean][] {
  const list: [string, InputSpec, boolean][] = [];
  for (const kind of ["required", "optional"] as const) {
    const specs = info.input[kind] ?? {};
    for (const name of info.input_order?.[kind] ?? Object.keys(specs)) {
      const spec = specs[name];
      if (spec) list.push([name, spec, kind === "required"]);
    }
  }
  return list;
}

/** The choices of a combo input, in its old and its new form; null for other inputs. */
export function choicesOf(spec: InputSpec | undefined): string[] | null {
  if (!spec) return null;
  if (Array.isArray(spec[0])) return spec[0].map(String);
  if (spec[0] === "COMBO") {
    const options = spec[1]?.options;
    return Array.isArray(options) ? options.map(String) : [];
  }
  return null;
}
