// Outputs of nodes become pictures, films, sounds and texts.
import { describe, expect, it } from "vitest";
import { resultsOf, thumbnailOf } from "./results";

describe("results", () => {
  it("are sorted by what they are, stored before temporary, each once", () => {
    const results = resultsOf({
      "1": { images: [{ filename: "t.png", subfolder: "", type: "temp" }], animated: [false] },
      "2": {
        images: [
          { filename: "a.png", subfolder: "s", type: "output" },
          { filename: "a.png", subfolder: "s", type: "output" },
        ],
      },
      "3": { text: ["a title", ""] },
      "4": { audio: [{ filename: "x.flac", subfolder: "", type: "output" }], gifs: [{ filename: "v.mp4", subfolder: "", type: "output" }] },
    });
    expect(results.files.map((f) => `${f.kind} ${f.file.filename}`)).toEqual(["picture a.png", "audio x.flac", "video v.mp4", "picture t.png"]);
    expect(results.texts).toEqual([{ node: "3", text: "a title" }]);
    expect(thumbnailOf(results)?.filename).toBe("a.png");
    expect(thumbnailOf(resultsOf(undefined))).toBeNull();
  });
});
