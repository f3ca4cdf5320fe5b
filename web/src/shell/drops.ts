// Files that no view takes: each drop is answered with a word, and none of them replaces the page.
import { useEffect } from "react";
import { getJson } from "../api/client";
import { toast } from "../ui";

/** Weights, which belong into a folder and cannot be sent through the page. */
export function isModelFile(name: string): boolean {
  return /\.(safetensors|sft|ckpt|gguf|pth|pt)$/i.test(name);
}

/** Where to put a model file; `folder` is where checkpoints lie on the computer that runs Fresco. */
export function modelAdvice(name: string, folder = "models/checkpoints"): string {
  const sep = folder.includes("\\") ? "\\" : "/";
  const models = folder.slice(0, Math.max(0, folder.lastIndexOf(sep))) || "models";
  return `“${name}” is a model file. Copy it into ${folder} on the computer that runs Fresco (a LoRA into ${models}${sep}loras), then press the round arrow beside Model.`;
}

export async function adviseOnModel(name: string): Promise<void> {
  const paths = await getJson<Record<string, string[]>>("/internal/folder_paths").catch(() => null);
  toast(modelAdvice(name, paths?.checkpoints?.[0]), "info", { duration: 20_000 });
}

export function useDrops() {
  useEffect(() => {
    const over = (e: DragEvent) => {
      if (!e.defaultPrevented && e.dataTransfer?.types.includes("Files")) e.preventDefault();
    };
    // Before the views see it: none of them can take a model.
    const early = (e: DragEvent) => {
      const model = Array.from(e.dataTransfer?.files ?? []).find((f) => isModelFile(f.name));
      if (!model) return;
      e.preventDefault();
      // Views take down what they show while a file is dragged; they are told that the drag is over.
      e.target?.dispatchEvent(new DragEvent("dragleave", { bubbles: true }));
      e.stopPropagation();
      void adviseOnModel(model.name);
    };
    const drop = (e: DragEvent) => {
      if (e.defaultPrevented) return;
      e.preventDefault();
      if (e.dataTransfer?.files.length) toast("This view takes no files. Drop pictures on Create, and workflows on Apps or Graph.", "info");
    };
    addEventListener("dragover", over);
    addEventListener("drop", early, true);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("drop", early, true);
      removeEventListener("drop", drop);
    };
  }, []);
}
