import { describe, expect, it } from "vitest";
import { readFrame } from "./frames";

function frame(...parts: (number | string | number[])[]): ArrayBuffer {
  const bytes: number[] = [];
  for (const part of parts) {
    if (typeof part === "number") bytes.push((part >>> 24) & 255, (part >>> 16) & 255, (part >>> 8) & 255, part & 255);
    else if (typeof part === "string") bytes.push(...new TextEncoder().encode(part));
    else bytes.push(...part);
  }
  return new Uint8Array(bytes).buffer;
}

describe("readFrame", () => {
  it("reads a preview without metadata", () => {
    expect(readFrame(frame(1, 2, [9, 8]))).toEqual({ kind: "preview", mime: "image/png", bytes: new Uint8Array([9, 8]) });
    expect(readFrame(frame(1, 1, [9]))).toMatchObject({ mime: "image/jpeg" });
    expect(readFrame(frame(1, 77, [9]))).toMatchObject({ mime: "image/jpeg" });
  });
  it("reads a preview with metadata", () => {
    const meta = JSON.stringify({ node_id: "4.0.0.1", prompt_id: "p", display_node_id: "4", image_type: "image/png" });
    expect(readFrame(frame(4, meta.length, meta, [1, 2, 3]))).toEqual({
      kind: "preview",
      mime: "image/png",
      bytes: new Uint8Array([1, 2, 3]),
      promptId: "p",
      nodeId: "4",
    });
  });
  it("reads text with letters of several bytes", () => {
    expect(readFrame(frame(3, 2, "12", "grün"))).toEqual({ kind: "text", nodeId: "12", text: "grün" });
  });
  it("refuses what is broken or unknown", () => {
    expect(readFrame(frame(1))).toBeNull();
    expect(readFrame(frame(2, 1, [1]))).toBeNull();
    expect(readFrame(frame(4, 500, "{}"))).toBeNull();
    expect(readFrame(frame(4, 3, "{x}", [1]))).toBeNull();
  });
});
