// A picture that can be zoomed and moved: wheel, pinch, drag, double click, and keys; a swipe goes on when it fits.
import { type KeyboardEvent, type PointerEvent, useEffect, useRef, useState } from "react";
import { IconButton } from "../ui";
import { Gone } from "./Thumb";
import { actualSize, FIT, kept, type Size, type View, zoomed } from "./zoom";
import css from "./Zoomer.module.css";

export interface ZoomerProps {
  src: string;
  alt: string;
  /** Given where two pictures move together. */
  view?: View;
  onView?(view: View): void;
  /** A swipe of the fitting picture: 1 forwards, -1 back. */
  onSwipe?(step: 1 | -1): void;
  onSize?(size: Size): void;
}

const SWIPE = 60;
const STEP = 60;

export function Zoomer({ src, alt, view: given, onView, onSwipe, onSize }: ZoomerProps) {
  const [own, setOwn] = useState<View>(FIT);
  const [picture, setPicture] = useState<Size>({ width: 0, height: 0 });
  const [missing, setMissing] = useState(false);
  const frame = useRef<HTMLDivElement>(null);
  const pointers = useRef(new Map<number, { x: number; y: number; startX: number; startY: number }>());
  const view = given ?? own;
  const setView = onView ?? setOwn;

  useEffect(() => {
    setMissing(false);
    if (!given) setOwn(FIT);
    // Only another picture starts afresh.
  }, [src]);

  const size = (): Size => ({ width: frame.current?.clientWidth ?? 1, height: frame.current?.clientHeight ?? 1 });
  const point = (e: { clientX: number; clientY: number }) => {
    const box = frame.current?.getBoundingClientRect();
    return box ? { x: e.clientX - box.left - box.width / 2, y: e.clientY - box.top - box.height / 2 } : { x: 0, y: 0 };
  };
  const zoom = (factor: number, at = { x: 0, y: 0 }) => setView(zoomed(view, factor, at, size(), picture));
  const move = (dx: number, dy: number) => setView(kept({ ...view, x: view.x + dx, y: view.y + dy }, size(), picture));

  // The listener must be able to stop the page from scrolling, which React's own cannot.
  const onWheel = useRef<(e: WheelEvent) => void>(() => undefined);
  onWheel.current = (e) => {
    e.preventDefault();
    zoom(Math.exp(-e.deltaY * (e.deltaMode === 1 ? 0.05 : 0.002)), point(e));
  };
  useEffect(() => {
    const element = frame.current;
    const listen = (e: WheelEvent) => onWheel.current(e);
    element?.addEventListener("wheel", listen, { passive: false });
    return () => element?.removeEventListener("wheel", listen);
  }, []);

  const down = (e: PointerEvent) => {
    if (e.button !== 0) return;
    frame.current?.setPointerCapture(e.pointerId);
    pointers.current.set(e.pointerId, { x: e.clientX, y: e.clientY, startX: e.clientX, startY: e.clientY });
  };
  const drag = (e: PointerEvent) => {
    const mine = pointers.current.get(e.pointerId);
    if (!mine) return;
    const [dx, dy] = [e.clientX - mine.x, e.clientY - mine.y];
    const other = [...pointers.current].find(([id]) => id !== e.pointerId)?.[1];
    if (other) {
      const apart = (x: number, y: number) => Math.hypot(x - other.x, y - other.y);
      const before = apart(mine.x, mine.y);
      if (before > 0) zoom(apart(e.clientX, e.clientY) / before, point({ clientX: (e.clientX + other.x) / 2, clientY: (e.clientY + other.y) / 2 }));
    } else if (view.scale > 1) move(dx, dy);
    mine.x = e.clientX;
    mine.y = e.clientY;
  };
  const up = (e: PointerEvent) => {
    const mine = pointers.current.get(e.pointerId);
    pointers.current.delete(e.pointerId);
    if (!mine || e.type === "pointercancel" || view.scale > 1 || pointers.current.size > 0) return;
    const [dx, dy] = [e.clientX - mine.startX, e.clientY - mine.startY];
    if (Math.abs(dx) > SWIPE && Math.abs(dx) > 2 * Math.abs(dy)) onSwipe?.(dx < 0 ? 1 : -1);
  };

  const key = (e: KeyboardEvent) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const shift = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] }[e.key];
    if (shift && view.scale > 1) move(shift[0] as number, shift[1] as number);
    else if (e.key === "+" || e.key === "=") zoom(1.5);
    else if (e.key === "-") zoom(1 / 1.5);
    else if (e.key === "0") setView(FIT);
    else return;
    e.preventDefault();
    e.stopPropagation();
  };

  if (missing)
    return (
      <div className={css.frame}>
        <Gone large />
      </div>
    );
  return (
    <div className={css.box}>
      <div
        ref={frame}
        className={view.scale > 1 ? `${css.frame} ${css.grab}` : css.frame}
        tabIndex={0}
        role="group"
        aria-label={`${alt}. Zoom with plus and minus, move with the arrow keys.`}
        onKeyDown={key}
        onPointerDown={down}
        onPointerMove={drag}
        onPointerUp={up}
        onPointerCancel={up}
        onDoubleClick={(e) => (view.scale > 1 ? setView(FIT) : zoom(Math.max(2, actualSize(size(), picture)), point(e)))}
      >
        <img
          className={css.picture}
          src={src}
          alt={alt}
          draggable={false}
          style={{ transform: `translate(${view.x}px, ${view.y}px) scale(${view.scale})`, imageRendering: view.scale > 4 ? "pixelated" : undefined }}
          onLoad={(e) => {
            const loaded = { width: e.currentTarget.naturalWidth, height: e.currentTarget.naturalHeight };
            setPicture(loaded);
            onSize?.(loaded);
          }}
          onError={() => setMissing(true)}
        />
      </div>
      <div className={css.tools}>
        <IconButton label="Zoom out" icon="zoomOut" onClick={() => zoom(1 / 1.5)} disabled={view.scale <= 1} />
        <IconButton label="Fit" icon="fit" onClick={() => setView(FIT)} disabled={view.scale === 1} />
        <IconButton label="Zoom in" icon="zoomIn" onClick={() => zoom(1.5)} />
      </div>
    </div>
  );
}
