// Painting the area of a picture to change, with the prompt that says what to put there: finger, pen, mouse or keys; every
// step can be undone.
import { type KeyboardEvent, type PointerEvent, useEffect, useLayoutEffect, useRef, useState } from "react";
import type { FileRef } from "../api/types";
import { Button, IconButton, Slider, TextInput, toast } from "../ui";
import type { Size } from "./family";
import { applyOp, BRUSH_MIN, brushFor, brushMax, covered, drawStroke, type MaskOp, type Point, replayed } from "./mask";
import { restoreMask, sendMask, storedImage } from "./pictures";
import { useModal } from "./useModal";
import type { CreateValues } from "./values";
import css from "./MaskPainter.module.css";

export interface MaskPainterProps {
  image: FileRef;
  /** An area painted earlier. */
  mask: FileRef | null;
  values: CreateValues;
  set(patch: Partial<CreateValues>): void;
  /** The painted area, and whether a picture is to be made with it at once. */
  onDone(mask: FileRef | null, run: boolean): void;
  onClose(): void;
}

type Tool = "paint" | "erase" | "move";
const ZOOMS = [1, 1.5, 2, 3, 4];

export function MaskPainter({ image, mask, values, set, onDone, onClose }: MaskPainterProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const paint = useRef<HTMLCanvasElement>(null);
  const desk = useRef<HTMLDivElement>(null);
  /** Where the view stands when it is larger than the window, as shares of the way. */
  const middle = useRef({ x: 0.5, y: 0.5 });
  /** The mask as it was when the window opened; undo goes back to it. */
  const first = useRef<HTMLCanvasElement | null>(null);
  const stroke = useRef<{ pointer: number; op: Extract<MaskOp, { kind: "stroke" }> } | null>(null);
  const [size, setSize] = useState<Size | null>(null);
  const [url, setUrl] = useState("");
  const [tool, setTool] = useState<Tool>("paint");
  const [brush, setBrush] = useState(24);
  const [zoom, setZoom] = useState(1);
  const [ops, setOps] = useState<MaskOp[]>([]);
  const [undone, setUndone] = useState<MaskOp[]>([]);
  const [cursor, setCursor] = useState<{ x: number; y: number; keys: boolean } | null>(null);
  const [saving, setSaving] = useState(false);
  /** Somebody wanted to go on without having painted anything. */
  const [empty, setEmpty] = useState(false);

  useModal(dialog);
  useEffect(() => {
    let gone = false;
    storedImage(image).then(
      (loaded) => {
        if (gone) return;
        const full = { width: loaded.naturalWidth, height: loaded.naturalHeight };
        setUrl(loaded.src);
        setSize(full);
        setBrush(brushFor(full));
      },
      () => {
        toast("The picture's file is gone.", "bad");
        onClose();
      },
    );
    return () => {
      gone = true;
    };
    // The picture does not change while the window is open.
  }, []);

  useEffect(() => {
    const canvas = paint.current;
    if (!size || !canvas) return;
    const keep = () => {
      const copy = document.createElement("canvas");
      copy.width = size.width;
      copy.height = size.height;
      copy.getContext("2d")?.drawImage(canvas, 0, 0);
      first.current = copy;
    };
    keep();
    if (mask) void restoreMask(canvas, mask).then(keep, () => undefined);
  }, [size, mask]);

  const context = () => paint.current?.getContext("2d", { willReadFrequently: true }) ?? null;
  const redraw = (list: MaskOp[]) => {
    const cx = context();
    if (!cx || !size) return;
    const { ops: needed, fromStart } = replayed(list);
    cx.globalCompositeOperation = "source-over";
    cx.clearRect(0, 0, size.width, size.height);
    if (fromStart && first.current) cx.drawImage(first.current, 0, 0);
    for (const op of needed) applyOp(cx, op, size);
  };
  const commit = (op: MaskOp, drawn: boolean) => {
    const cx = context();
    if (!drawn && cx && size) applyOp(cx, op, size);
    setOps((list) => [...list, op]);
    setUndone([]);
    setEmpty(false);
  };
  const undo = () => {
    const last = ops.at(-1);
    if (!last) return;
    redraw(ops.slice(0, -1));
    setOps(ops.slice(0, -1));
    setUndone([...undone, last]);
  };
  const redo = () => {
    const next = undone.at(-1);
    if (!next) return;
    redraw([...ops, next]);
    setOps([...ops, next]);
    setUndone(undone.slice(0, -1));
  };

  const pointAt = (e: PointerEvent<HTMLCanvasElement>): Point => {
    const box = e.currentTarget.getBoundingClientRect();
    const scale = size ? size.width / box.width : 1;
    const p = e.pointerType === "pen" && e.pressure > 0 ? 0.4 + 0.6 * e.pressure : 1;
    return { x: (e.clientX - box.left) * scale, y: (e.clientY - box.top) * scale, p };
  };
  const down = (e: PointerEvent<HTMLCanvasElement>) => {
    if (tool === "move" || e.button > 0 || stroke.current) return;
    e.preventDefault();
    e.currentTarget.setPointerCapture(e.pointerId);
    const op = { kind: "stroke" as const, erase: tool === "erase", size: brush, points: [pointAt(e)] };
    stroke.current = { pointer: e.pointerId, op };
    extend(op, 0);
  };
  const extend = (op: Extract<MaskOp, { kind: "stroke" }>, from: number) => {
    const cx = context();
    if (!cx) return;
    cx.globalCompositeOperation = op.erase ? "destination-out" : "source-over";
    drawStroke(cx, op.points, op.size, from);
    cx.globalCompositeOperation = "source-over";
  };
  const move = (e: PointerEvent<HTMLCanvasElement>) => {
    const here = pointAt(e);
    setCursor(e.pointerType === "touch" ? null : { x: here.x, y: here.y, keys: false });
    const now = stroke.current;
    if (!now || now.pointer !== e.pointerId) return;
    const from = now.op.points.length;
    now.op.points.push(here);
    extend(now.op, from);
  };
  const up = (e: PointerEvent<HTMLCanvasElement>) => {
    const now = stroke.current;
    if (!now || now.pointer !== e.pointerId) return;
    stroke.current = null;
    commit(now.op, true);
  };
  const keys = (e: KeyboardEvent<HTMLCanvasElement>) => {
    if (!size) return;
    const at = cursor ?? { x: size.width / 2, y: size.height / 2, keys: true };
    const by = Math.max(1, e.shiftKey ? brush : brush / 4);
    const step = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, -by], ArrowDown: [0, by] }[e.key];
    if (step) {
      e.preventDefault();
      const [dx = 0, dy = 0] = step;
      setCursor({ x: Math.min(size.width, Math.max(0, at.x + dx)), y: Math.min(size.height, Math.max(0, at.y + dy)), keys: true });
    } else if (e.key === " " || e.key === "Enter") {
      e.preventDefault();
      setCursor({ ...at, keys: true });
      commit({ kind: "stroke", erase: tool === "erase", size: brush, points: [{ x: at.x, y: at.y, p: 1 }] }, false);
    }
  };
  const shortcuts = (e: KeyboardEvent) => {
    // In the prompt, keys are text.
    if (e.target instanceof HTMLInputElement && e.target.type === "text") return;
    if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "z") {
      e.preventDefault();
      if (e.shiftKey) redo();
      else undo();
    } else if (e.key === "[" || e.key === "]") {
      const max = size ? brushMax(size) : 256;
      setBrush((b) => Math.min(max, Math.max(BRUSH_MIN, Math.round(e.key === "[" ? b / 1.25 : b * 1.25 + 1))));
    }
  };
  const done = async (run: boolean) => {
    const canvas = paint.current;
    const cx = context();
    if (!canvas || !cx || !size) return;
    const share = covered(cx.getImageData(0, 0, size.width, size.height).data);
    if (share === 0) {
      // Without an area the whole picture would change, which nobody asked for here.
      if (mask) onDone(null, false);
      else setEmpty(true);
      return;
    }
    setSaving(true);
    try {
      onDone(await sendMask(canvas, image), run);
    } catch (e) {
      toast(`The area could not be sent: ${e instanceof Error ? e.message : "unknown error"}`, "bad");
    } finally {
      setSaving(false);
    }
  };
  // What was in the middle of the view stays there.
  useLayoutEffect(() => {
    const view = desk.current;
    if (view) view.scrollTo((view.scrollWidth - view.clientWidth) * middle.current.x, (view.scrollHeight - view.clientHeight) * middle.current.y);
  }, [zoom]);
  const scrolled = () => {
    const view = desk.current;
    if (!view) return;
    const share = (at: number, room: number) => (room > 0 ? at / room : 0.5);
    middle.current = { x: share(view.scrollLeft, view.scrollWidth - view.clientWidth), y: share(view.scrollTop, view.scrollHeight - view.clientHeight) };
  };
  const zoomBy = (step: number) => setZoom((z) => ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, ZOOMS.indexOf(z) + step))] ?? 1);

  return (
    <dialog
      ref={dialog}
      className={css.painter}
      aria-label="Paint the area to change"
      onCancel={(e) => {
        if (e.target !== e.currentTarget) return;
        e.preventDefault();
        onClose();
      }}
      onKeyDown={shortcuts}
    >
      <div className={css.tools} role="toolbar" aria-label="Painting">
        <div className={css.set}>
          <IconButton label="Paint" icon="brush" pressed={tool === "paint"} onClick={() => setTool("paint")} />
          <IconButton label="Erase" icon="eraser" pressed={tool === "erase"} onClick={() => setTool("erase")} />
          <IconButton label="Move the picture" icon="hand" pressed={tool === "move"} onClick={() => setTool("move")} />
        </div>
        <div className={css.brush}>
          <Slider label="Brush size" value={brush} min={BRUSH_MIN} max={size ? brushMax(size) : 256} step={1} onChange={setBrush} />
        </div>
        <div className={css.set}>
          <IconButton label="Undo" icon="undo" disabled={ops.length === 0} onClick={undo} />
          <IconButton label="Redo" icon="redo" disabled={undone.length === 0} onClick={redo} />
        </div>
        <div className={css.set}>
          <Button size="s" variant="quiet" onClick={() => commit({ kind: "clear" }, false)}>
            Clear
          </Button>
          <Button size="s" variant="quiet" onClick={() => commit({ kind: "fill" }, false)}>
            All
          </Button>
          <Button size="s" variant="quiet" onClick={() => commit({ kind: "invert" }, false)}>
            Invert
          </Button>
        </div>
        <div className={css.set}>
          <IconButton label="Zoom out" icon="zoomOut" disabled={zoom === 1} onClick={() => zoomBy(-1)} />
          <IconButton label="Zoom in" icon="zoomIn" disabled={zoom === ZOOMS.at(-1)} onClick={() => zoomBy(1)} />
        </div>
      </div>
      <div ref={desk} className={css.desk} onScroll={scrolled}>
        {size && (
          <div
            className={css.sheet}
            style={{ aspectRatio: `${size.width} / ${size.height}`, "--zoom": zoom, "--ratio": size.width / size.height } as React.CSSProperties}
          >
            <img src={url} alt="The start picture" draggable={false} />
            <canvas
              ref={paint}
              className={css.paint}
              data-tool={tool}
              width={size.width}
              height={size.height}
              tabIndex={0}
              role="application"
              aria-label="Area to change. Arrow keys move the brush, Space paints, bracket keys change its size."
              onPointerDown={down}
              onPointerMove={move}
              onPointerUp={up}
              onPointerCancel={up}
              onPointerLeave={() => setCursor((c) => (c?.keys ? c : null))}
              onKeyDown={keys}
              onBlur={() => setCursor(null)}
            />
            {cursor && tool !== "move" && (
              <span
                className={css.cursor}
                aria-hidden="true"
                style={{
                  left: `${(cursor.x / size.width) * 100}%`,
                  top: `${(cursor.y / size.height) * 100}%`,
                  width: `${(brush / size.width) * 100}%`,
                }}
              />
            )}
          </div>
        )}
      </div>
      <div className={css.foot}>
        <p className={empty ? css.wrong : css.hint} role={empty ? "alert" : undefined}>
          {empty ? "Nothing is painted yet. Paint over what you want to change first." : "Paint over what you want to change. The rest stays exactly as it is."}
        </p>
        <div className={css.ask}>
          <TextInput
            aria-label="What should be there instead"
            placeholder="What should be there instead?"
            value={values.prompt}
            onChange={(prompt) => set({ prompt })}
            onKeyDown={(e) => {
              if (e.key !== "Enter" || saving) return;
              e.preventDefault();
              void done(true);
            }}
          />
        </div>
        <div className={css.end}>
          <Button variant="quiet" onClick={onClose}>
            Cancel
          </Button>
          <Button disabled={saving} onClick={() => void done(false)}>
            Use this area
          </Button>
          <Button variant="primary" icon="create" busy={saving} onClick={() => void done(true)}>
            Create
          </Button>
        </div>
      </div>
    </dialog>
  );
}
