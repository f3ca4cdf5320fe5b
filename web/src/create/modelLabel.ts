// How model files are called on the page.

/** File names without their endings; folders stay, they tell models apart. */
export function modelLabel(name: string): string {
  return name.replace(/\.(safetensors|ckpt|pt|pth|bin|gguf|sft)$/i, "");
}
