import { expect, it } from "vitest";
import { backoff } from "./socket";

it("waits longer each time, but not for ever", () => {
  expect([0, 1, 2, 3, 4, 5, 20].map(backoff)).toEqual([300, 600, 1200, 2400, 4800, 8000, 8000]);
});
