// The arithmetic of zooming and moving a picture inside a frame: scale 1 fits the frame, x and y move its middle.

export interface View {
  scale: number;
  x: number;
  y: number;
}

export interface Size {
  width: number;
  height: number;
}

export const FIT: View = { scale: 1, x: 0, y: 0 };
export const MOST = 16;

/** The picture's size at scale 1. */
export function fitted(frame: Size, picture: Size): Size {
  if (picture.width <= 0 || picture.height <= 0) return { width: 0, height: 0 };
  const k = Math.min(frame.width / picture.width, frame.height / picture.height);
  return { width: picture.width * k, height: picture.height * k };
}

/** Keeps the picture in the frame: never smaller than fitting, no gap at an edge where it is larger than the frame. */
export function kept(view: View, frame: Size, picture: Size): View {
  const scale = Math.max(1, Math.min(MOST, view.scale));
  const fit = fitted(frame, picture);
  const reach = (inner: number, outer: number) => Math.max(0, (inner * scale - outer) / 2);
  const clamp = (v: number, r: number) => Math.max(-r, Math.min(r, v)) + 0;
  return { scale, x: clamp(view.x, reach(fit.width, frame.width)), y: clamp(view.y, reach(fit.height, frame.height)) };
}

/** Zooms by a factor so that the point (from the frame's middle) stays where it is. */
export function zoomed(view: View, factor: number, at: { x: number; y: number }, frame: Size, picture: Size): View {
  const scale = Math.max(1, Math.min(MOST, view.scale * factor));
  const k = scale / view.scale;
  return kept({ scale, x: at.x - (at.x - view.x) * k, y: at.y - (at.y - view.y) * k }, frame, picture);
}

/** The scale at which one pixel of the picture is one pixel of the screen. */
export function actualSize(frame: Size, picture: Size): number {
  const fit = fitted(frame, picture);
  return fit.width > 0 ? picture.width / fit.width : 1;
}
