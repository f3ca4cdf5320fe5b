// Time left, step by step.
import { describe, expect, it } from "vitest";
import { learned, leftWords, newTrack, paceFor, paceKey, steadied, timeLeft, tracked } from "./estimate";

/** Steps of 100 ms after 1,000 ms of loading. */
function run(steps: number) {
  let t = newTrack(0);
  for (let i = 1; i <= steps; i++) t = tracked(t, i, 20, 1000 + i * 100);
  return t;
}

describe("timeLeft", () => {
  it("knows nothing at first, and then what the steps say", () => {
    expect(timeLeft(newTrack(0), 20, null, 500)).toBeNull();
    expect(timeLeft(run(1), 20, null, 1100)).toBeNull();
    expect(timeLeft(run(10), 20, null, 2000)).toBe(10 * 100 + 100);
  });

  it("counts down between steps and never below the end", () => {
    const t = run(10);
    expect(timeLeft(t, 20, null, 2050)).toBe(1050);
    expect(timeLeft(t, 20, null, 99_000)).toBe(1000);
    expect(timeLeft(run(20), 20, null, 99_000)).toBe(100);
  });

  it("uses earlier runs before the first step", () => {
    const pace = { step: 100, before: 1000, after: 300 };
    expect(timeLeft(newTrack(0), 20, pace, 400)).toBe(600 + 2000 + 300);
    expect(timeLeft(newTrack(0), 20, pace, 5000)).toBe(2300);
    expect(timeLeft(run(1), 20, pace, 1100)).toBe(1900 + 300);
  });

  it("does not take steps that are told all at once for quick ones", () => {
    let t = newTrack(0);
    for (let i = 1; i <= 12; i++) t = tracked(t, i, 20, 60_000 + i);
    expect(timeLeft(t, 20, null, 60_012)).toBeNull();
    // The step that was under way says nothing either; the next one does.
    t = tracked(t, 13, 20, 60_112);
    expect(timeLeft(t, 20, null, 60_112)).toBeNull();
    t = tracked(t, 14, 20, 62_112);
    expect(timeLeft(t, 20, null, 62_112)).toBe(6 * 2000 + 2000);
  });

  it("starts over with a second sampler and ignores counters of one", () => {
    const t = tracked(run(20), 1, 10, 5000);
    expect(t).toMatchObject({ first: 1, value: 1, max: 10 });
    expect(tracked(t, 0, 1, 6000)).toBe(t);
  });
});

describe("pace", () => {
  it("is learned and softened", () => {
    const first = learned(null, run(20), 3500);
    expect(first).toEqual({ step: 100, before: 1000, after: 500 });
    expect(learned(first, { ...run(20), lastAt: 1100 + 19 * 200 }, 1100 + 19 * 200)?.step).toBeCloseTo(160);
    expect(learned(null, newTrack(0), 10)).toBeNull();
  });

  it("carries over to other sizes of the same model", () => {
    const known = { [paceKey("m", 256, 256)]: { step: 100, before: 1000, after: 50 } };
    expect(paceFor(known, "m", 512, 512)).toEqual({ step: 400, before: 1000, after: 200 });
    expect(paceFor(known, "other", 256, 256)).toBeNull();
  });
});

it("speaks in round words", () => {
  expect([null, 900, 4200, 23_000, 70_000, 300_000, 7_200_000].map((ms) => leftWords(ms, true))).toEqual([
    "",
    "almost done",
    "about 4 s left",
    "about 25 s left",
    "about a minute left",
    "about 5 min left",
    "about 2 h left",
  ]);
});

it("does not call a short picture almost done from its start on", () => {
  expect(leftWords(900, false)).toBe("");
  expect(leftWords(4200, false)).toBe("about 4 s left");
});

it("does not swing between two estimates", () => {
  const said = (estimates: (number | null)[]) => {
    let shown: number | null = null;
    return estimates.map((e) => {
      shown = steadied(shown, e);
      return leftWords(shown, true);
    });
  };
  // As measured: every late step makes the estimate jump back.
  expect(said([2100, 1400, 1600, 1450, 2400, 900])).toEqual(["about 2 s left", ...Array<string>(5).fill("almost done")]);
  expect(said([9400, 9900, 9300, null, 8900])).toEqual(["about 9 s left", "about 9 s left", "about 9 s left", "about 9 s left", "about 9 s left"]);
  // A second sampler, or a machine that became slow, is told.
  expect(said([1000, 20_000])).toEqual(["almost done", "about 20 s left"]);
});
