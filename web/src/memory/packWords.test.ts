import { expect, it } from "vitest";
import { type Pack, packFaults, packLine, packsLine } from "./packWords";

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

it("says what packs did that they should not have done", () => {
  expect(packFaults(pack({ ends: 0, writes_outside: [] }))).toEqual([]);
  expect(packFaults(pack({ ends: 1, last_end: "signal SIGSEGV" }))).toEqual([
    "Its process ended unexpectedly once while running one of its nodes: signal SIGSEGV",
  ]);
  expect(packFaults(pack({ ends: 3 }))).toEqual(["Its process ended unexpectedly 3 times while running one of its nodes"]);
  expect(packFaults(pack({ writes_outside: ["/etc/a", "/b"] }))).toEqual(["It wrote outside its folders: /etc/a, /b"]);
});
