// Says in plain words what is in memory and why; pure.
import { bytes } from "../state/format";
import type { Claim, Device, FreeReport, MemoryEvent, Model } from "./types";

/** `cuda:0` as people say it. */
export function deviceName(device: string): string {
  if (device === "cpu") return "main memory";
  const [kind, index] = device.split(":");
  const number = index === undefined ? "" : ` ${index}`;
  if (kind === "sim") return `simulated device${number}`;
  return `GPU${number}`;
}

export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const COMPONENTS: Record<string, string> = {
  diffusion: "Picture model",
  clip: "Text encoder",
  text_encoder: "Text encoder",
  vae: "Picture decoder",
  lora: "LoRA",
  control_net: "ControlNet",
  controlnet: "ControlNet",
  clip_vision: "Picture reader",
  upscale: "Upscaler",
  upscale_model: "Upscaler",
};

export function componentName(model: Pick<Model, "component">): string {
  return COMPONENTS[model.component] ?? capital(model.component.replaceAll("_", " "));
}

/** The file's name; an id stands in where there is none. */
export function fileName(model: Pick<Model, "content" | "weights_id">): string {
  const path = model.content[0];
  return path ? path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1) : (model.weights_id.split(":")[0] ?? model.weights_id);
}

export interface Parts {
  models: number;
  other: number;
  free: number;
  total: number;
}

/** How a device's memory is divided; the parts always sum up to the whole. */
export function partsOf(device: Device): Parts {
  const total = Math.max(device.total, 1);
  const free = Math.min(Math.max(0, device.free), total);
  const models = Math.min(device.weights_resident + device.weights_buffer, total - free);
  return { models, free, other: total - free - models, total };
}

/** Where the bytes of a model are, accelerators first; nothing for one that is not in memory. */
export function placesOf(model: Model): { device: string; bytes: number }[] {
  const list = Object.entries(model.residency).map(([device, n]) => ({ device, bytes: n }));
  list.push({ device: "cpu", bytes: model.host_bytes });
  return list.filter((p) => p.bytes > 0);
}

export function inMemory(model: Model): number {
  return placesOf(model).reduce((sum, p) => sum + p.bytes, 0);
}

export const POLICIES = [
  { value: "auto", label: "Automatic" },
  { value: "keep", label: "Keep loaded" },
  { value: "eject_after", label: "Eject after each run" },
];

export function policyName(policy: string): string {
  if (policy === "pin") return "Pinned";
  const ttl = /^ttl:(\d+)/.exec(policy);
  if (ttl) return `Stay ${ttl[1]} s after use`;
  return POLICIES.find((p) => p.value === policy)?.label ?? policy;
}

/** `in main memory`, `on GPU 0`. */
const at = (device: string) => `${device === "cpu" ? "in" : "on"} ${deviceName(device)}`;

const where = (model: Model) =>
  placesOf(model)
    .map((p) => `${bytes(p.bytes)} ${at(p.device)}`)
    .join(", ");

const DEMOTED: Record<string, string> = {
  pressure: "another model needed the space",
  load: "another model needed the space",
  oom: "the device ran out of memory while making a picture",
  free: "you freed memory",
  force: "you freed memory",
  idle: "nothing used it for a while",
  prompt_end: "the picture that used it was done",
  in_node: "the workflow said so",
  api: "you asked for it",
};

function placeSentence(model: Model, decisions: MemoryEvent[]): string {
  const computes = model.handles[0]?.compute_device;
  const lastLoad = decisions.filter((e) => e.kind === "model.loaded" && e.weights_id === model.weights_id).at(-1);
  switch (model.state) {
    case "released":
      return "It is not in memory now. It is read from its file when a picture needs it.";
    case "release_failed":
      return "It should have been unloaded, but its memory could not be freed. Fresco will try again.";
    case "resident":
      return `All of it is ${at(computes ?? placesOf(model)[0]?.device ?? "cpu")}, where it computes.`;
    case "partial":
      if (model.handles.some((h) => h.placement)) return `It is split over ${placesOf(model).length} places, as its loader asks: ${where(model)}.`;
      return `It is split: ${where(model)}. ${model.demoted_by ? `Part of it moved, because ${DEMOTED[model.demoted_by] ?? "the space was needed"}.` : "What did not fit is brought over while it is used, which is slower."}`;
    case "offloaded":
      if (model.demoted_by) return `It waits in main memory, because ${DEMOTED[model.demoted_by] ?? `of ${model.demoted_by}`}.`;
      if (lastLoad?.decision === "partial") {
        return `It lives in main memory and is brought to ${deviceName(lastLoad.device ?? computes ?? "cpu")} layer by layer while it is used, because it did not fit there.`;
      }
      return computes && computes !== "cpu"
        ? `It waits in main memory until a picture needs it on ${deviceName(computes)}.`
        : "It waits in main memory for its next use.";
  }
}

/** The claim that decides: the strongest, and of these the newest. */
export function decidingClaim(model: Model): Claim | undefined {
  return [...model.claims].filter((c) => c.policy === model.effective_policy).sort((a, b) => b.at - a.at)[0];
}

function staySentence(model: Model): string {
  const claim = decidingClaim(model);
  const node = claim?.claimant.node_id;
  const by = model.policy_source === "api" ? "you chose that here" : node ? `node ${node} of a workflow asks for it` : "a workflow asks for it";
  const policy = model.effective_policy;
  if (policy === "keep") return `It stays loaded because ${by}.`;
  if (policy === "pin") return `It is pinned and never moves because ${by}.`;
  if (policy === "eject_after") return `It leaves memory after the run that uses it because ${by}.`;
  if (policy.startsWith("ttl")) return `It leaves memory ${/\d+/.exec(policy)?.[0] ?? "some"} seconds after its last use because ${by}.`;
  return model.state === "released" ? "" : "It stays until the space is needed.";
}

/** Why a model is where it is, in one to three sentences. */
export function why(model: Model, decisions: MemoryEvent[] = []): string {
  const used = model.leases.length > 0 ? "A picture is using it now." : "";
  return [used, placeSentence(model, decisions), staySentence(model)].filter(Boolean).join(" ");
}

/** What to say when the policy that counts is not the one chosen here; null where it is. */
export function overruled(model: Model): string | null {
  const own = model.claims.find((c) => c.source === "api");
  if (!own || own.policy === model.effective_policy) return null;
  const claim = decidingClaim(model);
  const node = claim?.claimant.node_id;
  return (
    `You chose “${policyName(own.policy)}”, but ${node ? `node ${node} of a workflow` : "a workflow"} asks for “${policyName(model.effective_policy)}”, which takes precedence. ` +
    "Change it in the workflow, or eject the model to clear its settings."
  );
}

function wishSentence(e: MemoryEvent): string | null {
  // Every loader says “auto” unless told otherwise; that is no news.
  if (!e.policy || e.policy_source === "default") return null;
  const who = e.policy_source === "api" ? "You chose" : e.node_id ? `Node ${e.node_id} asks for` : "A workflow asks for";
  const wins = /^(\S+) counts/.exec(e.reason ?? "")?.[1];
  const lost = wins && wins !== e.policy ? `, but “${policyName(wins)}” takes precedence` : "";
  return `${who} “${policyName(e.policy)}”${lost}`;
}

function stayReason(e: MemoryEvent): string {
  if (!e.policy || e.policy === "auto") return "nothing needs the space";
  return `${e.policy_source === "api" ? "you chose" : "a workflow asks for"} “${policyName(e.policy)}”`;
}

/** One thing that was done or decided, as a sentence without the model's name; null for what is of no interest. */
export function eventSentence(e: MemoryEvent): string | null {
  const on = e.device ? ` ${at(e.device)}` : "";
  const because = e.reason ? ` (${e.reason})` : "";
  const n = (key: string) => e.numbers?.[key] ?? 0;
  switch (e.kind) {
    case "model.registered":
      return `Opened its file: ${bytes(n("bytes"))}`;
    case "model.attached":
      return "Used again, without reading its file";
    case "model.rehydrated":
      return "Read from its file again";
    case "model.loaded":
      return e.decision === "partial"
        ? `Loaded in part${on}: ${bytes(n("loaded"))} there, ${bytes(n("offloaded"))} brought over while it is used`
        : `Loaded${on}`;
    case "model.shrunk":
      return `Made smaller${on}: ${bytes(e.bytes_after ?? 0)} left there${because}`;
    case "model.evicted":
      return `Left ${deviceName(e.device ?? "cpu")}${because}`;
    case "model.released":
      return `Left memory${because}`;
    case "model.leak_suspected":
      return `Its memory did not come back${because}`;
    case "policy.set":
      return wishSentence(e);
    case "plan.computed":
      return e.decision === "keep" ? `Stays: ${stayReason(e)}` : null;
    case "retention.conflict":
      return `Two settings conflict${because}`;
    case "retention.overridden":
      return `Had to move although it is set to stay${because}`;
    case "eject.applied":
      return `Other models made room for it${on}`;
    case "cleanup.deferred":
      return `Will leave when the pictures that use it are done${because}`;
    case "free.applied":
      return "Memory was freed on request";
    case "free.deferred":
      return "A request to free memory waits for the running picture";
    case "cache.reset":
      return "All node results were discarded";
    case "oom.step":
      return `Out of memory${on}: made room${because}`;
    case "accounting.drift":
      return `A device reports other numbers than expected${because}`;
    case "admission.downgraded":
      return e.reason ?? "A workflow runs slower than it could, for lack of memory";
    default:
      return null;
  }
}

/** Models that are to be kept and that a request to free would take all the same. */
export function keptAmong(models: Model[], everything: boolean): Model[] {
  const affected = (m: Model) => (everything ? inMemory(m) > 0 : Object.values(m.residency).some((n) => n > 0));
  return models.filter((m) => (m.effective_policy === "keep" || m.effective_policy === "pin") && affected(m));
}

/** Who wants a model to be kept: `Text encoder of a.safetensors, because you chose that here`. */
export function keptLine(model: Model): string {
  const node = decidingClaim(model)?.claimant.node_id;
  const by = model.policy_source === "api" ? "you chose that here" : node ? `node ${node} of a workflow asks for it` : "a workflow asks for it";
  return `${componentName(model)} of ${fileName(model)} (${bytes(inMemory(model))}), because ${by}`;
}

/** What freeing brought, for a person. */
export function freedSentence(report: FreeReport, everything: boolean): string {
  let devices = 0;
  let main = 0;
  let moved = 0;
  for (const model of report.models) {
    let changed = false;
    for (const device of new Set([...Object.keys(model.before), ...Object.keys(model.after)])) {
      const freed = (model.before[device] ?? 0) - (model.after[device] ?? 0);
      if (freed > 0) changed = true;
      if (device === "cpu") main += Math.max(0, freed);
      else devices += Math.max(0, freed);
    }
    if (changed) moved += 1;
  }
  const failed = report.models.find((m) => m.error);
  const models = moved === 1 ? "1 model" : `${moved} models`;
  if (failed) return `${models} unloaded, but not all: ${failed.error}`;
  if (everything) {
    const freed = Math.max(main + devices, report.ram_before - report.ram_after);
    if (moved === 0 && freed <= 0) return "There were no models in memory. Node results were discarded.";
    return `Freed ${bytes(freed)}: ${models} and the node results.`;
  }
  if (moved === 0) return "No model was on a GPU. To give back main memory too, use “Free model and node cache”.";
  return `Freed ${bytes(devices)} on GPUs: ${models} moved to main memory.`;
}
