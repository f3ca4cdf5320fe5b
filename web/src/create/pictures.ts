// Pictures on their way to the server: turned upright, flattened, not larger than useful; and masks made of what was painted.
import { uploadImage, uploadMask, viewUrl } from "../api/client";
import type { FileRef } from "../api/types";
import type { Size } from "./family";
import { alphaFromPaint, softFor } from "./mask";

/** Longest side that is sent; models work on far fewer pixels. */
const LONGEST = 2048;

export interface Sent {
  file: FileRef;
  size: Size;
}

/** The size a picture is sent in. */
export function sentSize(size: Size): Size {
  const scale = Math.min(1, LONGEST / Math.max(size.width, size.height, 1));
  return { width: Math.max(1, Math.round(size.width * scale)), height: Math.max(1, Math.round(size.height * scale)) };
}

/** A short file name from whatever the picture was called. */
export function sentName(name: string): string {
  const stem = name
    .replace(/\.[^.]*$/, "")
    .normalize("NFKD")
    .replace(/[^A-Za-z0-9_-]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 60);
  return `${stem || "picture"}.png`;
}

function canvasOf({ width, height }: Size): [HTMLCanvasElement, CanvasRenderingContext2D] {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const cx = canvas.getContext("2d");
  if (!cx) throw new Error("This browser cannot draw on a canvas.");
  return [canvas, cx];
}

function pngOf(canvas: HTMLCanvasElement): Promise<Blob> {
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The picture could not be encoded."))), "image/png"));
}

/** Sends a picture of the user. Re-drawing it applies the camera's rotation and drops place and camera names. */
export async function sendPicture(file: Blob, name: string): Promise<Sent> {
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    throw new Error("This file is not a picture the browser can read.");
  }
  const size = sentSize(bitmap);
  const [canvas, cx] = canvasOf(size);
  cx.fillStyle = "#fff";
  cx.fillRect(0, 0, size.width, size.height);
  cx.imageSmoothingQuality = "high";
  cx.drawImage(bitmap, 0, 0, size.width, size.height);
  bitmap.close();
  return { file: await uploadImage(await pngOf(canvas), sentName(name), { subfolder: "fresco" }), size };
}

/** A stored picture, ready to be drawn. */
export async function storedImage(file: FileRef): Promise<HTMLImageElement> {
  const image = new Image();
  image.src = viewUrl(file);
  await image.decode();
  return image;
}

export async function storedSize(file: FileRef): Promise<Size> {
  const image = await storedImage(file);
  return { width: image.naturalWidth, height: image.naturalHeight };
}

/** Stores a copy of the start picture with the painted area cut out. Each has its own name, because waiting jobs still
 *  need the older ones. */
export async function sendMask(paint: HTMLCanvasElement, original: FileRef): Promise<FileRef> {
  const size = { width: paint.width, height: paint.height };
  const from = paint.getContext("2d");
  if (!from) throw new Error("This browser cannot draw on a canvas.");
  const alpha = alphaFromPaint(from.getImageData(0, 0, size.width, size.height).data, size, softFor(size));
  const [canvas, cx] = canvasOf(size);
  cx.putImageData(new ImageData(alpha, size.width, size.height), 0, 0);
  const stamp = Date.now().toString(36);
  return uploadMask(await pngOf(canvas), original, `fresco-area-${stamp}.png`);
}

/** Paints onto a mask what was cut out of a stored copy earlier. */
export async function restoreMask(paint: HTMLCanvasElement, mask: FileRef): Promise<void> {
  const image = new Image();
  image.src = `${viewUrl(mask)}&channel=a`;
  await image.decode();
  const size = { width: paint.width, height: paint.height };
  const [, cx] = canvasOf(size);
  cx.drawImage(image, 0, 0, size.width, size.height);
  const pixels = cx.getImageData(0, 0, size.width, size.height);
  for (let i = 3; i < pixels.data.length; i += 4) pixels.data[i] = (pixels.data[i] ?? 255) < 128 ? 255 : 0;
  for (let i = 0; i < pixels.data.length; i += 4) pixels.data[i] = pixels.data[i + 1] = pixels.data[i + 2] = 0;
  paint.getContext("2d")?.putImageData(pixels, 0, 0);
}
