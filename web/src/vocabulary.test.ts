// One word for one thing in all views; the list is web/VOCABULARY.md.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";

const root = join(import.meta.dirname, ".");

function sources(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return sources(path);
    return /\.tsx?$/.test(entry.name) && !/\.test\.tsx?$|^starterWords/.test(entry.name) ? [path] : [];
  });
}

/** What people may read: texts between tags, and quoted texts that are sentences or labels. */
function sentences(source: string): string[] {
  const code = source
    .replace(/\/\*[\s\S]*?\*\//g, "")
    .replace(/(^|\s)\/\/.*$/gm, "")
    .replace(/^import .*$/gm, "");
  const between = [...code.matchAll(/>([^<>{}=;()]*[A-Za-z]{2}[^<>{}=;()]*)</g)].map((m) => m[1] ?? "");
  const quoted = [...code.matchAll(/"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`/g)].map((m) => m[1] ?? m[2] ?? "");
  return [...between, ...quoted.filter((t) => /[A-Za-z]+ [A-Za-z]+/.test(t) || /^[A-Z][a-z]+$/.test(t))].map((t) => t.trim());
}

/** A word that is not used, and where it may stand all the same. */
const BANNED: [word: RegExp, except?: RegExp][] = [
  [/\bimages?\b/i, /load image|save image|preview image|image\/|inpaint image|empty latent image/i],
  [/\bnegative prompts?\b|\bpositive prompts?\b|\bleave out\b|\bClear the words\b|\bthe words, seed\b/i],
  [/\bCFG\b/],
  [/\bdenois(e|ing)\b|\bchange strength\b/i],
  [/\bnoise schedule\b/i],
  [/\b(find|no) a? ?step\b|"steps?" : "steps?"/i],
  [/^Stop$|^Stopped\.?$|\babort(ed)?\b/i],
  [/\benlarged?\b|\bbigger\b/i],
  [/\bStart from it\b|\binit image\b/i],
  [/\b(in|from) the (graph|gallery)\b|\bin (graph|gallery)\b/],
  [/\b[Dd]rop(ped|s)? (it anyway|all models|the model|\$\{name\})|\bpurge\b/],
  [/\bcannot be reached\b/i],
  [/\bCopy settings\b|\bnew number for\b|\bthis number for\b/],
];

it("says one word for one thing", () => {
  const found: string[] = [];
  for (const path of sources(root)) {
    const text = readFileSync(path, "utf8");
    for (const sentence of sentences(text)) {
      for (const [word, except] of BANNED)
        if (word.test(sentence) && !except?.test(sentence)) found.push(`${path.slice(root.length + 1)}: “${sentence.slice(0, 90)}” (${word.source})`);
    }
  }
  expect(found).toEqual([]);
});

it("finds what it looks for", () => {
  expect(sentences('<p>Drop the image here</p> const a = "Negative prompt"; // a comment "in the graph"\n')).toEqual([
    "Drop the image here",
    "Negative prompt",
  ]);
});
