import { expect, it } from "vitest";
import { EXAMPLES, isStarter, PLACEHOLDER, starterHint, unknownWords } from "./starter";

it("names the words the starter model was never shown", () => {
  expect(unknownWords("a yellow submarine near the Eiffel tower")).toEqual(["submarine", "Eiffel"]);
  expect(unknownWords("two cats, three foxes and my cherries' leaves")).toEqual([]);
  expect(unknownWords("(apple:1.2), [[pear]], Zorgon's zorgon")).toEqual(["Zorgon"]);
  expect(unknownWords("")).toEqual([]);
});

it("says what it draws, and at most a few of those words", () => {
  expect(starterHint("a red apple")).toBe("The starter model draws icons.");
  expect(starterHint("a submarine")).toBe("The starter model draws icons. It does not know: submarine.");
  expect(starterHint("aaaa bbbb cccc dddd eeee ffff gggg hhhh")).toContain("ffff and 2 more.");
});

it("knows every word of its own examples", () => {
  for (const text of [...EXAMPLES, PLACEHOLDER.split(": ")[1]!]) expect(unknownWords(text), text).toEqual([]);
});

it("is known by its file's name", () => {
  expect([isStarter("fresco-starter.safetensors"), isStarter("sub/Fresco-Starter.gguf"), isStarter("sd15.safetensors")]).toEqual([true, true, false]);
});
