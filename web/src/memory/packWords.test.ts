import { expect, it } from "vitest";
import { type Pack, packLine, packsLine } from "./packWords";

const pack = (changes: Partial<Pack>): Pack => ({ name: "p", state: "loaded", error: null, seconds: 0.25, nodes: ["A"], ...changes });

it("says how packs are", () => {
  expect(packLine(pack({}))).toBe("1 node, loaded in 0.3 s");
  expect(packLine(pack({ state: "failed", error: "ImportError: no\nmore" }))).toBe("ImportError: no");
  expect(packLine(pack({ state: "waiting" }))).toBe("It is being loaded.");
  const packs = [pack({}), pack({ state: "failed" })];
  expect(packsLine({ state: "ready", packs, python: { python: "3.12.1" } })).toBe("1 pack runs in Python 3.12.1. 1 could not be loaded.");
  expect(packsLine({ state: "starting", packs })).toBe("They are being loaded.");
  expect(packsLine({ state: "unavailable", problem: "no Python", packs })).toBe("no Python");
});
