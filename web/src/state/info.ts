// What the server can do: its node classes and the names of its models.
import { create } from "zustand";
import { getJson, onBack } from "../api/client";
import { choicesOf } from "../api/workflow";
import type { ObjectInfo } from "../api/types";

/** Which input of which class lists the files of a folder. */
const LISTED: Record<string, [string, string]> = {
  checkpoints: ["CheckpointLoaderSimple", "ckpt_name"],
  loras: ["LoraLoader", "lora_name"],
  vae: ["VAELoader", "vae_name"],
  upscale_models: ["UpscaleModelLoader", "model_name"],
  controlnet: ["ControlNetLoader", "control_net_name"],
  clip_vision: ["CLIPVisionLoader", "clip_name"],
  text_encoders: ["CLIPLoader", "clip_name"],
  diffusion_models: ["UNETLoader", "unet_name"],
  embeddings: ["", ""],
};

/** Names from the combo of the folder's loader, or null where no class lists them. */
export function modelsIn(info: ObjectInfo | null, folder: string): string[] | null {
  const [className, input] = LISTED[folder] ?? [];
  const spec = className && input ? info?.[className]?.input.required?.[input] : undefined;
  return choicesOf(spec);
}

interface InfoState {
  info: ObjectInfo | null;
  error: string | null;
  folders: Record<string, string[]>;
  /** Fetches once; further calls wait for the same answer. */
  load(): Promise<ObjectInfo>;
  /** Fetches anew, e.g. after a model file was added. */
  reload(): Promise<ObjectInfo>;
  models(folder: string): string[];
}

let loading: Promise<ObjectInfo> | null = null;
const asked = new Set<string>();

export const useInfo = create<InfoState>()((set, get) => {
  const fetchInfo = () => {
    const own = getJson<ObjectInfo>("/api/object_info").then(
      (info) => {
        set({ info, error: null });
        return info;
      },
      (e: unknown) => {
        if (loading === own) loading = null;
        set({ error: e instanceof Error ? e.message : String(e) });
        throw e;
      },
    );
    loading = own;
    return own;
  };
  return {
    info: null,
    error: null,
    folders: {},
    load: () => loading ?? fetchInfo(),
    reload: () => {
      asked.clear();
      set({ folders: {} });
      return fetchInfo();
    },
    models(folder) {
      const { info, folders } = get();
      const listed = modelsIn(info, folder);
      if (listed) return listed;
      if (!asked.has(folder) && info) {
        asked.add(folder);
        getJson<string[]>(`/api/models/${encodeURIComponent(folder)}`).then(
          (names) => set((s) => ({ folders: { ...s.folders, [folder]: names } })),
          () => undefined,
        );
      }
      return folders[folder] ?? [];
    },
  };
});

// Asked again as soon as the server answers, whatever view is open.
onBack(() => {
  if (useInfo.getState().error)
    void useInfo
      .getState()
      .load()
      .catch(() => undefined);
});
