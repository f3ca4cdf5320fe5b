import { expect, test } from "vitest";
import { compareHash, detailHash, parseRoute } from "./route";

test("addresses are read back as they were written, odd ids too", () => {
  for (const job of ["a8dd-78fa", "x/y.12", "ä b?", "compare", "50%"]) {
    expect(parseRoute(detailHash(job))).toEqual({ page: "detail", job });
    const a = { job, file: 3 };
    const b = { job: "q.1", file: 0 };
    expect(parseRoute(compareHash(a, b))).toEqual({ page: "compare", a, b });
  }
});

test("other addresses are the grid", () => {
  for (const hash of ["#/gallery", "#/gallery/", "", "#/create", "#/gallery?x=1"]) expect(parseRoute(hash)).toEqual({ page: "grid" });
  expect(parseRoute("#/gallery/%E0%A4%A")).toEqual({ page: "detail", job: "%E0%A4%A" });
});
