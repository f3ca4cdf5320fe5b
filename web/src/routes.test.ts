import { expect, it } from "vitest";
import { parseRoute } from "./routes";

it("reads hash routes", () => {
  expect(parseRoute("")).toEqual({ view: "create" });
  expect(parseRoute("#/memory")).toEqual({ view: "memory" });
  expect(parseRoute("#/apps/My%20app")).toEqual({ view: "apps", arg: "My app" });
  expect(parseRoute("#/gallery/a/b")).toEqual({ view: "gallery", arg: "a/b" });
  expect(parseRoute("#/nothing/x")).toEqual({ view: "create" });
  expect(parseRoute("#/apps/%E0%A4%A")).toEqual({ view: "apps", arg: "%E0%A4%A" });
});
