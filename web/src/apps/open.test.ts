// Files that are opened, and the sentences about those that cannot be.
import { afterEach, describe, expect, it, vi } from "vitest";
import { ApiError } from "../api/client";
import { openData, openFile, openText, sentenceOf } from "./open";
import { info, txt2img } from "./samples";

function answer(status: number, body: unknown) {
  const fetch = vi.fn(async () => new Response(JSON.stringify(body), { status }));
  vi.stubGlobal("fetch", fetch);
  return fetch;
}

afterEach(() => vi.unstubAllGlobals());

const inspection = {
  kind: "ui",
  workflow: { nodes: [], links: [], version: 0.4 },
  prompt: txt2img(),
  missing: { nodes: [], models: [], files: [] },
  warnings: ["a note"],
};

describe("opening", () => {
  it("asks the server what a picture holds and names the app after the file", async () => {
    const fetch = answer(200, inspection);
    const found = await openFile(new File(["x"], "castle_00003_.png", { type: "image/png" }), info);
    expect(found).toMatchObject({ kind: "workflow", warnings: ["a note"], app: { name: "castle" } });
    expect(found.app.form.shown[0]).toEqual({ key: "6/text" });
    expect(fetch).toHaveBeenCalledTimes(1);
  });

  it("reads our own apps without the server", async () => {
    const fetch = answer(200, {});
    answer(200, inspection);
    const { app } = await openData(txt2img(), "Castle", info);
    vi.stubGlobal("fetch", fetch);
    expect(await openText(JSON.stringify(app), "x", info)).toEqual({ kind: "app", app });
    expect(fetch).not.toHaveBeenCalled();
  });

  it("opens a prompt also where the server cannot convert", async () => {
    answer(404, {});
    expect((await openData(txt2img(), "", info)).app.prompt).toEqual(txt2img());
  });

  it("refuses with a sentence", async () => {
    answer(200, { ...inspection, prompt: {} });
    await expect(openText("{", "", info)).rejects.toThrow("not a workflow");
    await expect(openText("  ", "", info)).rejects.toThrow("It is empty");
    await expect(openText("5", "", info)).rejects.toThrow("not a workflow");
    await expect(openText("{}", "", info)).rejects.toThrow("no nodes");
    await expect(openFile(new File([], "a.json"), info)).rejects.toThrow('"a.json" is empty');
  });
});

describe("a sentence", () => {
  it("is made of what the server says", () => {
    expect(sentenceOf(new ApiError("This is not a workflow", 400, "x", "the picture carries none"))).toBe("This is not a workflow: the picture carries none.");
    expect(sentenceOf(new ApiError("Too large.", 413))).toBe("Too large.");
    expect(sentenceOf(new Error("Gone."))).toBe("Gone.");
  });
});
