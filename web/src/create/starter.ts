// The model that comes with the program: what it draws, which words it was shown, and examples it draws well.
import { STARTER_WORDS } from "./starterWords";

/** Prompts that came out right on the sheets of starter/README.md; no one of them was in its training. */
export const EXAMPLES = [
  "a red apple",
  "a fox in the snow",
  "a rocket in space",
  "a lion wearing a crown",
  "a green frog on a red mushroom",
  "a pink house with a red door",
];
export const PLACEHOLDER = "Describe a picture, like: a turtle on the beach";

export function isStarter(model: string): boolean {
  return /fresco-starter/i.test(model);
}

const known = new Set(STARTER_WORDS.split(/\s+/).filter(Boolean));

/** Words that stand in a sentence without showing anything. */
const LITTLE = new Set(
  (
    "i me my we our you your he him his she her it its they them their this that these those is are was were be been being am do does did has have had" +
    " will would can could may might should shall must not no yes as if so than then too very more most some any all each both such only own same other another" +
    " but nor for about into onto out off up down through between around after before while during without within upon per via just also again once here there" +
    " when where which who whom whose what how why let us make made please like want wants see show shows draw one ones"
  ).split(" "),
);

/** A word as it may stand in the list: without its ending. */
function forms(word: string): string[] {
  const out = [word];
  if (word.endsWith("ies")) out.push(`${word.slice(0, -3)}y`);
  if (word.endsWith("ves")) out.push(`${word.slice(0, -3)}f`, `${word.slice(0, -3)}fe`);
  if (word.endsWith("es")) out.push(word.slice(0, -2));
  if (word.endsWith("s")) out.push(word.slice(0, -1));
  if (word.endsWith("men")) out.push(`${word.slice(0, -3)}man`);
  const irregular: Record<string, string> = { mice: "mouse", geese: "goose", feet: "foot", teeth: "tooth", children: "child", people: "man" };
  const one = irregular[word];
  if (one) out.push(one);
  return out;
}

/** The words of a prompt that the starter model was never shown, each once, as they are written. */
export function unknownWords(prompt: string): string[] {
  const found = new Map<string, string>();
  // Weights like (apple:1.2) and embeddings are the sampler's business.
  const text = prompt.replace(/embedding:\S+/gi, " ").replace(/:\s*[\d.]+/g, " ");
  for (const written of text.match(/[\p{L}][\p{L}\p{N}'’]*/gu) ?? []) {
    const word = written
      .toLowerCase()
      .replace(/['’]s?$/, "")
      .replace(/['’]/g, "");
    if (word.length < 2 || LITTLE.has(word) || forms(word).some((form) => known.has(form))) continue;
    if (!found.has(word)) found.set(word, written.replace(/['’]s?$/, ""));
  }
  return [...found.values()];
}

const NAMED = 6;

/** What to say under the prompt. */
export function starterHint(prompt: string): string {
  const unknown = unknownWords(prompt);
  const draws = "The starter model draws icons.";
  if (unknown.length === 0) return draws;
  const more = unknown.length - NAMED;
  return `${draws} It does not know: ${unknown.slice(0, NAMED).join(", ")}${more > 0 ? ` and ${more} more` : ""}.`;
}
