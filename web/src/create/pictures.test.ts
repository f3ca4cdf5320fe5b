// Names and sizes of pictures that are sent.
import { describe, expect, it } from "vitest";
import { sentName, sentSize } from "./pictures";

describe("pictures on their way", () => {
  it("get plain names", () => {
    expect(sentName("Ferien 2024 – Größe.JPG")).toBe("Ferien-2024-Gro-e.png");
    expect(sentName("../x/y.png")).toBe("x-y.png");
    expect(sentName("図.png")).toBe("picture.png");
  });

  it("are not larger than useful", () => {
    expect(sentSize({ width: 300, height: 200 })).toEqual({ width: 300, height: 200 });
    expect(sentSize({ width: 8192, height: 4096 })).toEqual({ width: 2048, height: 1024 });
    expect(sentSize({ width: 90000, height: 3 })).toEqual({ width: 2048, height: 1 });
  });
});
