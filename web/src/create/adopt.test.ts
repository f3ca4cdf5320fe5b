// Values that come from elsewhere.
import { describe, expect, it } from "vitest";
import { adopted } from "./adopt";
import { defaultValues } from "./values";

const picture = { filename: "a.png", subfolder: "", type: "output" as const };
const form = { ...defaultValues("here.safetensors"), prompt: "mine", image: picture, count: 4 };

describe("adopted", () => {
  it("keeps the seed so that the picture can be made again", () => {
    expect(adopted(form, { prompt: "theirs", seed: 5, steps: 9 }, ["here.safetensors"])).toMatchObject({
      prompt: "theirs",
      seed: 5,
      seedLocked: true,
      steps: 9,
      count: 1,
      image: null,
    });
  });

  it("leaves the model when theirs is not here", () => {
    expect(adopted(form, { model: "gone" }, ["here.safetensors"]).model).toBe("here.safetensors");
    expect(adopted(form, { model: "gone" }, []).model).toBe("gone");
  });

  it("takes a picture alone without touching the words", () => {
    expect(adopted({ ...form, image: null, denoise: 1 }, { image: picture, mask: null }, [])).toMatchObject({
      prompt: "mine",
      image: picture,
      seedLocked: false,
      denoise: 0.6,
    });
  });
});
