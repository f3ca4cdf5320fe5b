// Sizes and habits of models.
import { describe, expect, it } from "vitest";
import { enlarged, familyOf, fitSize, presetOf, sizePresets, snap } from "./family";

describe("familyOf", () => {
  it("knows models by their file name only", () => {
    expect(familyOf("fresco-starter.safetensors")).toMatchObject({ home: 256, steps: 20, cfg: 3 });
    expect(familyOf("v1-5-pruned-emaonly.safetensors")).toMatchObject({ home: 512, cfg: 7 });
    expect(familyOf("sd_xl_base_1.0.safetensors").home).toBe(1024);
    expect(familyOf("sdxl_lightning_4step.safetensors")).toMatchObject({ home: 1024, steps: 6, cfg: 1.5 });
    expect(familyOf("xl/photon_v1.safetensors").home).toBe(512);
  });
});

describe("sizes", () => {
  it("offers shapes a latent can have", () => {
    for (const home of [256, 512, 768, 1024]) {
      for (const p of sizePresets(home)) {
        expect(p.width % 32).toBe(0);
        expect(p.height % 32).toBe(0);
        expect(presetOf(p, home)).toBe(p.id);
        const ratio = (p.width * p.height) / (home * home);
        expect(ratio).toBeGreaterThan(0.9);
        expect(ratio).toBeLessThan(1.6);
      }
    }
    expect(sizePresets(512)[1]).toMatchObject({ width: 512, height: 768 });
    expect(presetOf({ width: 500, height: 512 }, 512)).toBeNull();
  });

  it("snaps to eights within limits", () => {
    expect([snap(0), snap(301), snap(99999), snap(Number.NaN)]).toEqual([64, 304, 2048, 512]);
  });

  it("keeps the shape of a start picture at the model's number of pixels", () => {
    const photo = fitSize({ width: 4000, height: 3000 }, 512);
    expect(photo.width / photo.height).toBeCloseTo(4 / 3, 1);
    expect(photo.width * photo.height).toBeLessThan(512 * 512 * 1.1);
    expect(fitSize({ width: 512, height: 512 }, 512)).toEqual({ width: 512, height: 512 });
    expect(fitSize({ width: 64, height: 64 }, 256)).toEqual({ width: 256, height: 256 });
    const strip = fitSize({ width: 8000, height: 200 }, 512);
    expect(strip.width).toBeLessThanOrEqual(1024);
    expect(strip.height).toBeGreaterThanOrEqual(64);
    expect(fitSize({ width: 0, height: 0 }, 512)).toEqual({ width: 512, height: 512 });
  });

  it("enlarges twice while there is room, less near the limit, not beyond", () => {
    expect(enlarged({ width: 256, height: 320 })).toEqual({ width: 512, height: 640 });
    expect(enlarged({ width: 1536, height: 1024 })).toEqual({ width: 2048, height: 1368 });
    expect(enlarged({ width: 2048, height: 2048 })).toBeNull();
  });
});
