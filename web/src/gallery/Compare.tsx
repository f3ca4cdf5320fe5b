// Two results against each other: one laid over the other with a slider, or side by side, and what differs in their settings.
import { type CSSProperties, type PointerEvent, useEffect, useRef, useState } from "react";
import { viewUrl } from "../api/client";
import type { JobDetails } from "../api/types";
import { go } from "../state/handoff";
import { jobDetails } from "../state/live";
import { Button, EmptyState, IconButton, Select } from "../ui";
import { type Difference, differences } from "./difference";
import { Media } from "./Media";
import { fileKey, type FileOutput, readOutputs } from "./outputs";
import { compareHash, detailHash, type Side } from "./route";
import { settingsOf, summarise } from "./settings";
import { Gone } from "./Thumb";
import { FIT, type Size, type View } from "./zoom";
import { Zoomer } from "./Zoomer";
import css from "./Compare.module.css";

interface Loaded {
  side: Side;
  details: JobDetails;
  title: string;
  files: FileOutput[];
  shown: FileOutput | undefined;
}

async function load(side: Side): Promise<Loaded> {
  const details = await jobDetails(side.job);
  const { files } = readOutputs(details.outputs);
  return { side, details, title: summarise(details).title, files, shown: files[Math.min(side.file, files.length - 1)] };
}

/** One picture over the other. The frame has the picture's own shape, so that the line stands over the part of it that the
 *  number says; the range input is the handle for keys, screen readers and fingers. */
function Slider({ a, b }: { a: FileOutput; b: FileOutput }) {
  const [split, setSplit] = useState(50);
  const [gone, setGone] = useState<string[]>([]);
  const [sizes, setSizes] = useState<Record<string, Size>>({});
  const frame = useRef<HTMLDivElement>(null);
  const range = useRef<HTMLInputElement>(null);
  const drag = (e: PointerEvent) => {
    if (e.type === "pointerdown") {
      if (e.button !== 0) return;
      e.currentTarget.setPointerCapture(e.pointerId);
      // The arrow keys go on from here; the press itself must not take the focus away again.
      range.current?.focus({ preventScroll: true });
    } else if (!e.currentTarget.hasPointerCapture(e.pointerId)) return;
    const box = frame.current?.getBoundingClientRect();
    if (box && box.width > 0) setSplit(Math.max(0, Math.min(100, (100 * (e.clientX - box.left)) / box.width)));
  };
  const picture = (file: FileOutput, word: string, clip: string) => {
    const key = fileKey(file.file);
    return gone.includes(key) ? (
      <div className={css.layer} style={{ clipPath: clip }}>
        <Gone large />
      </div>
    ) : (
      <img
        className={css.layer}
        src={viewUrl(file.file)}
        alt={word}
        draggable={false}
        style={{ clipPath: clip }}
        onLoad={(e) => {
          const { naturalWidth: width, naturalHeight: height } = e.currentTarget;
          setSizes((old) => ({ ...old, [key]: { width, height } }));
        }}
        onError={() => setGone((old) => [...old, key])}
      />
    );
  };
  const [first, second] = [sizes[fileKey(a.file)], sizes[fileKey(b.file)]];
  const shape = (size: Size | undefined) => (size && size.width > 0 && size.height > 0 ? size.width / size.height : 1);
  const ratio = shape(first ?? second);
  const differ = first && second && Math.abs(Math.log(shape(first) / shape(second))) > 0.02;
  return (
    <div className={css.overlay} style={{ "--ratio": ratio } as CSSProperties}>
      <div ref={frame} className={css.frame} onPointerDown={drag} onPointerMove={drag} onMouseDown={(e) => e.preventDefault()}>
        {picture(b, "Picture B", `inset(0 0 0 ${split}%)`)}
        {picture(a, "Picture A", `inset(0 ${100 - split}% 0 0)`)}
        <div className={css.line} style={{ left: `${split}%` }} aria-hidden="true">
          <span>‹ ›</span>
        </div>
        <span className={css.tagA} aria-hidden="true">
          A
        </span>
        <span className={css.tagB} aria-hidden="true">
          B
        </span>
      </div>
      <label className={css.range}>
        <input
          ref={range}
          type="range"
          min={0}
          max={100}
          step={1}
          value={Math.round(split)}
          aria-valuetext={`${Math.round(split)} percent A`}
          onChange={(e) => setSplit(Number(e.target.value))}
        />
        <span>How much of A is shown</span>
      </label>
      {differ && (
        <p className={css.shapes}>
          They have different shapes, {first.width} × {first.height} and {second.width} × {second.height}: each is shown whole.
        </p>
      )}
    </div>
  );
}

function Differences({ list }: { list: Difference[] }) {
  if (list.length === 0) return <p className={css.same}>Their settings are the same.</p>;
  return (
    <div className={css.tableBox} tabIndex={0} role="region" aria-label="What differs">
      <table className={css.table}>
        <thead>
          <tr>
            <th scope="col">Setting</th>
            <th scope="col">A</th>
            <th scope="col">B</th>
          </tr>
        </thead>
        <tbody>
          {list.map((d) => (
            <tr key={d.name}>
              <th scope="row">{d.name}</th>
              <td>{d.a}</td>
              <td>{d.b}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Head({ loaded, letter, onFile }: { loaded: Loaded; letter: string; onFile(file: number): void }) {
  return (
    <div className={css.side}>
      <a href={detailHash(loaded.side.job)}>
        <b>{letter}</b> {loaded.title}
      </a>
      {loaded.files.length > 1 && (
        <Select
          aria-label={`Which picture of ${letter}`}
          value={String(Math.min(loaded.side.file, loaded.files.length - 1))}
          onChange={(v) => onFile(Number(v))}
          options={loaded.files.map((_, i) => ({ value: String(i), label: `${i + 1} of ${loaded.files.length}` }))}
        />
      )}
    </div>
  );
}

export function Compare({ a, b }: { a: Side; b: Side }) {
  const [pair, setPair] = useState<[Loaded, Loaded] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [mode, setMode] = useState<"slider" | "beside">("slider");
  const [view, setView] = useState<View>(FIT);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  useEffect(() => {
    let current = true;
    setView(FIT);
    Promise.all([load(a), load(b)]).then(
      (both) => {
        if (!current) return;
        setPair(both);
        setError(null);
      },
      (e: Error) => current && setError(e.message),
    );
    return () => {
      current = false;
    };
  }, [a.job, a.file, b.job, b.file]);
  useEffect(() => {
    const keys = (e: KeyboardEvent) => {
      if (e.key === "Escape" && !e.defaultPrevented) go("#/gallery");
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);

  /** The address changes in place, so that Back leads to the grid. */
  const show = (x: Side, y: Side) => {
    history.replaceState(null, "", compareHash(x, y));
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  const [left, right] = pair ?? [];
  const pictures = left?.shown?.kind === "picture" && right?.shown?.kind === "picture";
  return (
    <div className={css.compare}>
      <header className={css.head}>
        <a className={css.back} href="#/gallery">
          ‹ All results
        </a>
        <h1 ref={heading} tabIndex={-1}>
          Compare
        </h1>
        <div className={css.modes} role="group" aria-label="How to compare">
          <Button size="s" variant="quiet" aria-pressed={mode === "slider"} disabled={!pictures} onClick={() => setMode("slider")}>
            Slider
          </Button>
          <Button size="s" variant="quiet" aria-pressed={mode === "beside"} onClick={() => setMode("beside")}>
            Side by side
          </Button>
        </div>
        <IconButton variant="plain" icon="swap" label="Swap A and B" disabled={!pair} onClick={() => show(b, a)} />
      </header>
      {error && (
        <EmptyState icon="imageOff" title="These two cannot be compared" action={<Button onClick={() => go("#/gallery")}>All results</Button>}>
          {error}
        </EmptyState>
      )}
      {!error && !pair && <p role="status">Loading…</p>}
      {!error && left && right && (
        <>
          <div className={css.heads}>
            <Head loaded={left} letter="A" onFile={(file) => show({ ...a, file }, b)} />
            <Head loaded={right} letter="B" onFile={(file) => show(a, { ...b, file })} />
          </div>
          {mode === "slider" && pictures && left.shown && right.shown ? (
            <Slider a={left.shown} b={right.shown} />
          ) : (
            <div className={css.beside}>
              {[left, right].map((side, i) => (
                <div key={i} className={css.half}>
                  {!side.shown ? (
                    <Gone large />
                  ) : side.shown.kind === "picture" ? (
                    <Zoomer src={viewUrl(side.shown.file)} alt={`Picture ${i === 0 ? "A" : "B"}: ${side.title}`} view={view} onView={setView} />
                  ) : (
                    <Media output={side.shown} alt={side.title} />
                  )}
                </div>
              ))}
            </div>
          )}
          <section className={css.what}>
            <h2>What differs</h2>
            <Differences
              list={differences(
                { settings: settingsOf(left.details.workflow.prompt), prompt: left.details.workflow.prompt },
                { settings: settingsOf(right.details.workflow.prompt), prompt: right.details.workflow.prompt },
              )}
            />
          </section>
        </>
      )}
    </div>
  );
}
