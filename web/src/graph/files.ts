// Documents in files: the user's workflows (where ComfyUI keeps them too), dropped files, downloads.
import { nameFromFile } from "../apps/appFile";
import { adviseOnModel, isModelFile } from "../shell/drops";
import { ApiError, inspectWorkflow, userdata } from "../api/client";
import type { ApiPrompt, ObjectInfo } from "../api/types";
import { familyOf } from "../create/family";
import { useInfo } from "../state/info";
import { toast } from "../ui";
import type { Doc } from "./format";
import { asDoc, emptyDoc } from "./format";
import { uiFromApi } from "./fromApi";
import { lookForLacks } from "./lacks";
import { rememberJobs } from "./run";
import { isDirty, theDoc, useGraph } from "./store";

const FOLDER = "workflows";

/** Opens a document; `suggested` is what to call it where it was never saved. The one that was open can be brought back, by the
 *  message's button or by undoing. */
export function openDoc(doc: Doc, name: string | null, saved: boolean, suggested: string | null = null): void {
  const { opened, history, open } = useGraph.getState();
  const lost = opened > 0 && history.present.nodes.length > 0 && isDirty(useGraph.getState());
  open(doc, name, saved);
  useGraph.setState({ suggested });
  rememberJobs([]);
  if (lost)
    toast("Another workflow was opened. Undo brings yours back.", "info", { action: { label: "Go back", onSelect: () => useGraph.getState().goBack() } });
  void lookForLacks();
}

export async function listFiles(): Promise<string[]> {
  const names = await userdata.list(FOLDER);
  return names
    .filter((n) => n.toLowerCase().endsWith(".json"))
    .map((n) => n.slice(0, -5))
    .sort((a, b) => a.localeCompare(b, "en"));
}

export async function openFile(name: string): Promise<void> {
  const doc = asDoc(await userdata.read<unknown>(`${FOLDER}/${name}.json`));
  if (!doc) throw new Error("That file contains no workflow.");
  openDoc(doc, name, true);
}

export async function saveFile(name: string): Promise<void> {
  const doc = theDoc();
  await userdata.write(`${FOLDER}/${name}.json`, doc);
  useGraph.getState().markSaved(doc, name);
}

export async function removeFile(name: string): Promise<void> {
  await userdata.remove(`${FOLDER}/${name}.json`);
  if (useGraph.getState().name === name) useGraph.setState({ name: null, saved: null });
}

/** A name that is safe as a file's on every system; folders are allowed. */
export function cleanName(typed: string): string {
  return (
    typed
      .replace(/\.json$/i, "")
      .split("/")
      // eslint-disable-next-line no-control-regex
      .map((part) =>
        part
          .replace(/[\u0000-\u001f\\:*?"<>|]/g, "")
          .replace(/^\.+/, "")
          .trim(),
      )
      .filter(Boolean)
      .join("/")
  );
}

/** Opens a file from the disk: UI or API JSON, or a picture with its workflow inside. */
export async function importFile(file: File): Promise<void> {
  const name = nameFromFile(file.name) || file.name;
  if (isModelFile(file.name)) return adviseOnModel(file.name);
  if (file.name.toLowerCase().endsWith(".json") || file.type === "application/json") {
    let raw: unknown;
    try {
      raw = JSON.parse(await file.text());
    } catch {
      toast(`${file.name} is not valid JSON.`, "bad");
      return;
    }
    const doc = asDoc(raw) ?? asDoc((raw as { workflow?: unknown } | null)?.workflow);
    if (doc) {
      openDoc(doc, null, false, name);
      toast(`Opened ${name}.`, "good", { duration: 2500 });
      return;
    }
  }
  try {
    const inspection = await inspectWorkflow(file);
    const info = await useInfo.getState().load();
    if (!asDoc(inspection.workflow) && Object.keys(inspection.prompt).length === 0) throw new Error(`${file.name} contains no workflow.`);
    const doc = asDoc(inspection.workflow) ?? (uiFromApi(inspection.prompt, info) as unknown as Doc);
    openDoc(doc, null, false, name);
    for (const w of inspection.warnings.slice(0, 2)) toast(w, "warn");
    toast(`Opened ${name}.`, "good", { duration: 2500 });
  } catch (e) {
    toast(
      e instanceof ApiError && e.type === "invalid_workflow"
        ? `${file.name} contains no workflow: ${e.details || e.message}.`
        : e instanceof Error
          ? e.message
          : String(e),
      "bad",
    );
  }
}

export function download(name: string, value: unknown): void {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** What stands on the canvas when nothing else does: words to picture with the first model. */
export function defaultDoc(info: ObjectInfo): Doc {
  const choices = info.CheckpointLoaderSimple?.input.required?.ckpt_name?.[0];
  const options = info.CheckpointLoaderSimple?.input.required?.ckpt_name?.[1]?.options;
  const names = Array.isArray(choices) ? choices : Array.isArray(options) ? options : [];
  const model = typeof names[0] === "string" ? names[0] : "";
  const { home, steps, cfg, sampler, scheduler } = familyOf(model);
  const prompt: ApiPrompt = {
    "1": { class_type: "CheckpointLoaderSimple", inputs: { ckpt_name: model } },
    "2": { class_type: "CLIPTextEncode", inputs: { text: "a red apple", clip: ["1", 1] }, _meta: { title: "What to draw" } },
    "3": { class_type: "CLIPTextEncode", inputs: { text: "", clip: ["1", 1] }, _meta: { title: "What to avoid" } },
    "4": { class_type: "EmptyLatentImage", inputs: { width: home, height: home, batch_size: 1 } },
    "5": {
      class_type: "KSampler",
      inputs: {
        seed: 1,
        steps,
        cfg,
        sampler_name: sampler,
        scheduler,
        denoise: 1,
        model: ["1", 0],
        positive: ["2", 0],
        negative: ["3", 0],
        latent_image: ["4", 0],
      },
    },
    "6": { class_type: "VAEDecode", inputs: { samples: ["5", 0], vae: ["1", 2] } },
    "7": { class_type: "SaveImage", inputs: { filename_prefix: "Fresco", images: ["6", 0] } },
  };
  const known = Object.entries(prompt).every(([, n]) => Object.hasOwn(info, n.class_type));
  if (!known) return emptyDoc();
  const doc = uiFromApi(prompt, info) as unknown as Doc;
  // Here a new seed each time is what people expect.
  return {
    ...doc,
    nodes: doc.nodes.map((n) =>
      n.type === "KSampler" && Array.isArray(n.widgets_values)
        ? { ...n, widgets_values: n.widgets_values.map((v, i) => (i === 1 ? "randomize" : (v as unknown))) }
        : n,
    ),
  };
}
