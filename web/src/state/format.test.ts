import { describe, expect, it } from "vitest";
import { ago, bytes, duration } from "./format";

describe("format", () => {
  it("says amounts with the digits that matter", () => {
    expect([0, 1, 1023, 1024, 1536, 80 * 1024 ** 2, 24 * 1024 ** 3, 1.234 * 1024 ** 3].map(bytes)).toEqual([
      "0 bytes",
      "1 byte",
      "1023 bytes",
      "1 kB",
      "1.5 kB",
      "80 MB",
      "24 GB",
      "1.23 GB",
    ]);
  });
  it("says lengths of time", () => {
    expect([0.4, 59, 60, 125, 3600, 3780].map(duration)).toEqual(["0 s", "59 s", "1 min", "2 min 5 s", "1 h", "1 h 3 min"]);
  });
  it("says how long ago", () => {
    const now = 1e12;
    expect([1, 30, 60, 150, 3600, 7200, 86400, 3 * 86400].map((s) => ago(now - s * 1000, now))).toEqual([
      "just now",
      "30 seconds ago",
      "a minute ago",
      "2 minutes ago",
      "an hour ago",
      "2 hours ago",
      "a day ago",
      "3 days ago",
    ]);
  });
});
