import { expect, test } from "vitest";
import { fileRef, kindOf, readOutputs } from "./outputs";

test("a picture, a text and a latent of three nodes are told apart", () => {
  const got = readOutputs({
    "9": { images: [{ filename: "a.png", subfolder: "x", type: "output" }] },
    "3": { text: ["hello", ""] },
    "4": { latents: [{ filename: "l.latent", subfolder: "", type: "output" }] },
  });
  expect(got.texts).toEqual([{ node: "3", text: "hello" }]);
  expect(got.files.map((f) => [f.node, f.kind, f.file.filename])).toEqual([
    ["4", "file", "l.latent"],
    ["9", "picture", "a.png"],
  ]);
});

test("temporary files come last, the same file is named once, animated is kept", () => {
  const saved = { filename: "b.webp", subfolder: "", type: "output" };
  const got = readOutputs({
    "1": { images: [{ filename: "t.png", subfolder: "", type: "temp" }] },
    "2": { images: [saved, saved], animated: [true] },
  });
  expect(got.files.map((f) => [f.file.filename, f.animated])).toEqual([
    ["b.webp", true],
    ["t.png", false],
  ]);
});

test("things that are no outputs give none", () => {
  for (const wrong of [null, undefined, 3, [], { "1": null }, { "1": { images: "x" } }, { "1": { images: [{ filename: 3 }] } }]) {
    expect(readOutputs(wrong)).toEqual({ files: [], texts: [] });
  }
  expect(fileRef({ filename: "a", type: "elsewhere" })).toEqual({ filename: "a", subfolder: "", type: "output" });
});

test("the ending decides the kind, then the format, then the key", () => {
  expect(kindOf("a.MP4", "images")).toBe("video");
  expect(kindOf("a.flac")).toBe("audio");
  expect(kindOf("a.glb", "3d")).toBe("model");
  expect(kindOf("a.bin", "gifs", "video/h264")).toBe("video");
  expect(kindOf("a.bin", "audio")).toBe("audio");
  expect(kindOf("a.latent", "latents")).toBe("file");
});
