// Reads the Markdown of notes into a small tree. Nothing in it is ever taken as HTML, and nothing is loaded from elsewhere:
// pictures become links.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "break" }
  | { kind: "strong" | "em" | "del"; inside: Inline[] }
  | { kind: "link"; href: string; inside: Inline[] };

export type Block =
  | { kind: "heading"; level: number; inside: Inline[] }
  | { kind: "paragraph"; inside: Inline[] }
  | { kind: "code"; text: string }
  | { kind: "rule" }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; start: number | null; items: Block[][] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] };

/** Longer notes are cut, longer paragraphs are plain text, deeper nesting is flat: a stranger wrote the file. */
const LONGEST = 50_000;
const LONGEST_PARAGRAPH = 4_000;
const DEEPEST = 6;

/** The address of a link, or null where following it could do anything but open a page or a letter. */
export function safeHref(raw: string): string | null {
  const href = raw.trim();
  // eslint-disable-next-line no-control-regex
  return /^(https?:\/\/|mailto:)[^\u0000-\u0020<>"]+$/i.test(href) ? href : null;
}

const INLINE = new RegExp(
  [
    String.raw`\\(?<escaped>[!-/:-@[-\x60{-~])`,
    "(?<ticks>`+)(?<code>[^`]+)\\k<ticks>(?!`)",
    String.raw`!?\[(?<label>[^\[\]]*)\]\((?<href>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"]*")?\)`,
    String.raw`<(?<angled>(?:https?:\/\/|mailto:)[^\s<>]+)>`,
    String.raw`(?<bare>https?:\/\/[^\s<>"'\x60]*[^\s<>"'\x60.,;:!?)\]*_])`,
    String.raw`\*\*(?<bold>(?!\s)[^*]+(?:\*(?!\*)[^*]+)*)\*\*`,
    String.raw`(?<![\w])__(?<bold2>(?!\s)[^_]+)__(?!\w)`,
    String.raw`\*(?<em>(?![\s*])[^*]+)\*`,
    String.raw`(?<![\w])_(?<em2>(?![\s_])[^_]+)_(?!\w)`,
    "~~(?<del>[^~]+)~~",
    String.raw`(?<br><br\s*\/?>)`,
  ].join("|"),
  "g",
);

export function parseInline(text: string, depth = 0): Inline[] {
  if (text.length > LONGEST_PARAGRAPH || depth > DEEPEST) return text ? [{ kind: "text", text }] : [];
  const out: Inline[] = [];
  const plain = (part: string) => {
    part.split("\n").forEach((line, i) => {
      if (i > 0) out.push({ kind: "break" });
      const last = out.at(-1);
      if (line && last?.kind === "text") last.text += line;
      else if (line) out.push({ kind: "text", text: line });
    });
  };
  const link = (raw: string, label: string) => {
    const href = safeHref(raw);
    if (href) out.push({ kind: "link", href, inside: label === href ? [{ kind: "text", text: href }] : parseInline(label, DEEPEST) });
    else plain(label);
  };
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    plain(text.slice(at, found.index));
    at = found.index + found[0].length;
    const g = found.groups ?? {};
    if (g.escaped !== undefined) plain(g.escaped);
    else if (g.code !== undefined) out.push({ kind: "code", text: g.code.trim() });
    else if (g.label !== undefined) link(g.href ?? "", g.label || (g.href ?? ""));
    else if (g.angled !== undefined) link(g.angled, g.angled);
    else if (g.bare !== undefined) link(g.bare, g.bare);
    else if (g.br !== undefined) out.push({ kind: "break" });
    else if (g.del !== undefined) out.push({ kind: "del", inside: parseInline(g.del, depth + 1) });
    else if ((g.bold ?? g.bold2) !== undefined) out.push({ kind: "strong", inside: parseInline(g.bold ?? g.bold2 ?? "", depth + 1) });
    else out.push({ kind: "em", inside: parseInline(g.em ?? g.em2 ?? "", depth + 1) });
  }
  plain(text.slice(at));
  return out;
}

const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const cells = (line: string): string[] =>
  line
    .trim()
    .replace(/^\|/, "")
    .replace(/\|$/, "")
    .split("|")
    .map((c) => c.trim());

export function parseMarkdown(source: string): Block[] {
  const text = source.length > LONGEST ? `${source.slice(0, LONGEST)}…` : source;
  return blocks(text.replace(/\r\n?/g, "\n").replaceAll("\t", "    ").split("\n"), 0);
}

function blocks(lines: string[], depth: number): Block[] {
  const out: Block[] = [];
  let paragraph: string[] = [];
  const flush = () => {
    if (paragraph.length > 0) out.push({ kind: "paragraph", inside: parseInline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i] ?? "";
    const trimmed = line.trim();
    const fence = /^(```+|~~~+)/.exec(trimmed)?.[1];
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(trimmed);
    if (trimmed === "") flush();
    else if (fence) {
      flush();
      const inside: string[] = [];
      while (++i < lines.length && !(lines[i] ?? "").trim().startsWith(fence)) inside.push(lines[i] ?? "");
      out.push({ kind: "code", text: inside.join("\n") });
    } else if (heading) {
      flush();
      out.push({ kind: "heading", level: heading[1]?.length ?? 1, inside: parseInline(heading[2] ?? "") });
    } else if (/^(\*\s*){3,}$|^(-\s*){3,}$|^(_\s*){3,}$/.test(trimmed)) {
      flush();
      out.push({ kind: "rule" });
    } else if (trimmed.startsWith(">") && depth < DEEPEST) {
      flush();
      const inside: string[] = [];
      for (; i < lines.length && (lines[i] ?? "").trim().startsWith(">"); i++) inside.push((lines[i] ?? "").trim().replace(/^>\s?/, ""));
      i -= 1;
      out.push({ kind: "quote", blocks: blocks(inside, depth + 1) });
    } else if (ITEM.test(line) && depth < DEEPEST) {
      flush();
      const [list, next] = listAt(lines, i, depth);
      out.push(list);
      i = next - 1;
    } else if (trimmed.includes("|") && /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/.test((lines[i + 1] ?? "").trim()) && (lines[i + 1] ?? "").includes("-")) {
      flush();
      const rows: Inline[][][] = [];
      const head = cells(line).map((c) => parseInline(c));
      for (i += 2; i < lines.length && (lines[i] ?? "").includes("|"); i++) rows.push(cells(lines[i] ?? "").map((c) => parseInline(c)));
      i -= 1;
      out.push({ kind: "table", head, rows });
    } else paragraph.push(trimmed);
  }
  flush();
  return out;
}

/** The list that begins at a line, and the first line after it. */
function listAt(lines: string[], from: number, depth: number): [Block, number] {
  const first = ITEM.exec(lines[from] ?? "");
  const indent = first?.[1]?.length ?? 0;
  const ordered = first?.[3] !== undefined;
  const items: string[][] = [];
  let i = from;
  for (; i < lines.length; i++) {
    const line = lines[i] ?? "";
    const item = ITEM.exec(line);
    const inner = line.length - line.trimStart().length;
    if (item && (item[1]?.length ?? 0) <= indent + 1) {
      if ((item[3] !== undefined) !== ordered || (item[1]?.length ?? 0) < indent) break;
      items.push([item[4] ?? ""]);
    } else if (line.trim() === "") {
      // An empty line ends the list unless it goes on below.
      const next = lines[i + 1] ?? "";
      if (!ITEM.test(next) && next.length - next.trimStart().length <= indent) break;
      items.at(-1)?.push("");
    } else if (inner > indent || item === null) {
      if (inner <= indent && lines[i - 1]?.trim() === "") break;
      items.at(-1)?.push(line.slice(Math.min(inner, indent + 2)));
    } else break;
  }
  return [{ kind: "list", start: ordered ? Number(first?.[3]) : null, items: items.map((part) => blocks(part, depth + 1)) }, i];
}
