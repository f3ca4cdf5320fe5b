import { describe, expect, it } from "vitest";
import type { Device, Model } from "./types";
import { deviceName, eventSentence, fileName, freedSentence, keptAmong, keptLine, overruled, partsOf, placesOf, policyName, why } from "./words";

const GB = 1024 ** 3;
const model = (more: Partial<Model> = {}): Model => ({
  weights_id: "sd15.safetensors:diffusion-1",
  content: ["/models/checkpoints/sd15.safetensors"],
  component: "diffusion",
  class: "SdModel",
  bytes_total: 2 * GB,
  residency: {},
  host_bytes: 2 * GB,
  state: "offloaded",
  effective_policy: "auto",
  policy_source: "default",
  claims: [],
  leases: [],
  handles: [{ model_id: "m1", compute_device: "cuda:0", patches: 0 }],
  last_used: null,
  demoted_by: null,
  ...more,
});
const claim = (policy: string, source: "api" | "node_input", node = "") => ({
  claimant: { client_id: "", node_id: node },
  prompt_id: "",
  policy,
  source,
  at: 1,
});

describe("names", () => {
  it("says devices and files as people do", () => {
    expect(["cpu", "cuda:1", "sim:0"].map(deviceName)).toEqual(["main memory", "GPU 1", "simulated device 0"]);
    expect(fileName(model())).toBe("sd15.safetensors");
    expect(["auto", "pin", "ttl:30"].map(policyName)).toEqual(["Automatic", "Pinned", "Stay 30 s after use"]);
  });
});

describe("partsOf", () => {
  const device = (free: number, weights: number): Device => ({
    device: "cuda:0",
    type: "cuda",
    index: 0,
    total: 10,
    free,
    reserved: 0,
    weights_resident: weights,
    weights_buffer: 0,
    peak: 0,
  });
  it("divides the whole", () => {
    expect(partsOf(device(4, 5))).toEqual({ models: 5, other: 1, free: 4, total: 10 });
  });
  it("never gives more than there is", () => {
    expect(partsOf(device(8, 5))).toEqual({ models: 2, other: 0, free: 8, total: 10 });
    expect(partsOf(device(99, 0))).toEqual({ models: 0, other: 0, free: 10, total: 10 });
  });
});

describe("why", () => {
  it("says where a model is and what moved it", () => {
    expect(why(model({ demoted_by: "pressure" }))).toBe("It waits in main memory, because another model needed the space. It stays until the space is needed.");
    expect(why(model({ state: "resident", residency: { "cuda:0": 2 * GB }, host_bytes: 0 }))).toBe(
      "All of it is on GPU 0, where it computes. It stays until the space is needed.",
    );
    expect(why(model({ state: "partial", residency: { "cuda:0": GB }, host_bytes: GB }))).toContain("It is split: 1 GB on GPU 0, 1 GB in main memory.");
    expect(
      why(
        model({
          state: "partial",
          residency: { "cuda:0": GB },
          host_bytes: GB,
          handles: [{ model_id: "m", compute_device: "cuda:0", patches: 0, placement: "cuda:0,50%;cpu,*" }],
        }),
      ),
    ).toContain("split over 2 places, as its loader asks");
    expect(why(model({ state: "released", host_bytes: 0 }))).toBe("It is not in memory now. It is read from its file when a picture needs it.");
  });
  it("says when a model does not fit where it computes", () => {
    const load = { seq: 1, time: 0, kind: "model.loaded", weights_id: model().weights_id, device: "cuda:0" };
    expect(why(model(), [{ ...load, decision: "partial" }])).toContain("brought to GPU 0 layer by layer");
    expect(
      why(model(), [
        { ...load, decision: "partial" },
        { ...load, decision: "full" },
      ]),
    ).toContain("until a picture needs it on GPU 0");
  });
  it("says who keeps it, and who uses it", () => {
    expect(why(model({ effective_policy: "keep", policy_source: "node_input", claims: [claim("keep", "node_input", "4")] }))).toContain(
      "It stays loaded because node 4 of a workflow asks for it.",
    );
    expect(why(model({ effective_policy: "keep", policy_source: "api", claims: [claim("keep", "api")] }))).toContain("because you chose that here");
    expect(why(model({ leases: ["p"] }))).toMatch(/^A picture is using it now\./);
  });
});

describe("overruled", () => {
  it("speaks only where another wish won", () => {
    expect(overruled(model({ effective_policy: "keep", claims: [claim("auto", "api"), claim("keep", "node_input", "4")] }))).toContain(
      "You chose “Automatic”, but node 4 of a workflow asks for “Keep loaded”",
    );
    expect(overruled(model({ effective_policy: "keep", claims: [claim("keep", "api")] }))).toBeNull();
    expect(overruled(model())).toBeNull();
  });
});

describe("placesOf", () => {
  it("lists accelerators first and leaves out empty ones", () => {
    expect(placesOf(model({ residency: { "cuda:0": 5, "cuda:1": 0 }, host_bytes: 3 }))).toEqual([
      { device: "cuda:0", bytes: 5 },
      { device: "cpu", bytes: 3 },
    ]);
  });
});

describe("eventSentence", () => {
  it("tells what matters and is silent about the rest", () => {
    expect(eventSentence({ seq: 1, time: 0, kind: "model.loaded", device: "cuda:0", decision: "partial", numbers: { loaded: GB, offloaded: 2 * GB } })).toBe(
      "Loaded in part on GPU 0: 1 GB there, 2 GB brought over while it is used",
    );
    expect(eventSentence({ seq: 1, time: 0, kind: "model.evicted", device: "cuda:0", reason: "cuda:0 needs 1 GiB more" })).toBe(
      "Left GPU 0 (cuda:0 needs 1 GiB more)",
    );
    expect(eventSentence({ seq: 1, time: 0, kind: "cleanup.started" })).toBeNull();
    expect(eventSentence({ seq: 1, time: 0, kind: "plan.computed", decision: "keep", policy: "auto", policy_source: "default" })).toBe(
      "Stays: nothing needs the space",
    );
    expect(eventSentence({ seq: 1, time: 0, kind: "policy.set", policy: "auto", policy_source: "default", node_id: "1" })).toBeNull();
    expect(
      eventSentence({ seq: 1, time: 0, kind: "policy.set", policy: "auto", policy_source: "api", reason: "keep counts: keep set by node 9 (policy_node)" }),
    ).toBe("You chose “Automatic”, but “Keep loaded” takes precedence");
  });
});

describe("freedSentence", () => {
  const report = (before: Record<string, number>, after: Record<string, number>) => ({
    models: [{ weights_id: "a", before, after, error: null }],
    ram_before: 0,
    ram_after: 0,
    duration: 0,
    cache_reset: false,
  });
  it("counts what left devices and main memory", () => {
    expect(freedSentence(report({ "cuda:0": GB }, { cpu: GB }), false)).toBe("Freed 1 GB on GPUs: 1 model moved to main memory.");
    expect(freedSentence(report({ "cuda:0": GB, cpu: GB }, {}), true)).toBe("Freed 2 GB: 1 model and the node results.");
    expect(freedSentence({ ...report({}, {}), models: [] }, false)).toContain("No model was on a GPU");
    expect(freedSentence({ ...report({}, {}), models: [] }, true)).toContain("There were no models in memory");
  });
});

describe("keptAmong", () => {
  it("finds what is to be kept and would go", () => {
    const kept = model({ effective_policy: "keep", policy_source: "api", claims: [claim("keep", "api")] });
    const pinned = model({
      effective_policy: "pin",
      policy_source: "node_input",
      claims: [claim("pin", "node_input", "4")],
      residency: { "cuda:0": GB },
      host_bytes: 0,
    });
    const gone = model({ effective_policy: "keep", host_bytes: 0 });
    expect(keptAmong([model(), kept, pinned, gone], true)).toEqual([kept, pinned]);
    expect(keptAmong([model(), kept, pinned, gone], false)).toEqual([pinned]);
    expect(keptLine(kept)).toBe("Picture model of sd15.safetensors (2 GB), because you chose that here");
    expect(keptLine(pinned)).toContain("because node 4 of a workflow asks for it");
  });
});
