// What counts as a change that is worth saving.
import { describe, expect, it } from "vitest";
import { appFrom } from "./open";
import { info, txt2img } from "./samples";
import { setSeedMode } from "./form";
import { changed } from "./useApp";

describe("an open app", () => {
  const app = appFrom(txt2img(), null, "Castle", info);

  it("is changed by values and by its form", () => {
    expect(changed(app, app)).toBe(false);
    expect(changed({ ...app, values: { ...app.values, "6/text": "a harbour" } }, app)).toBe(true);
    expect(changed({ ...app, form: { ...app.form, more: false } }, app)).toBe(true);
  });

  it("is not changed by a seed drawn for a run, but by one that is kept", () => {
    const drawn = { ...app.values, "3/seed": 99 };
    expect(changed({ ...app, values: drawn }, app)).toBe(false);
    const kept = { ...app, form: setSeedMode(app.form, "3/seed", "fixed") };
    expect(changed({ ...kept, values: drawn }, kept)).toBe(true);
  });
});
