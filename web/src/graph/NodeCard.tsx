// A node on the canvas: title, sockets, values, progress, pictures and what is wrong with it.
import { Handle, NodeResizeControl, Position, useStore, useUpdateNodeInternals, type NodeProps } from "@xyflow/react";
import { memo, useEffect, useMemo, useRef, useState } from "react";
import { viewUrl } from "../api/client";
import type { FileRef } from "../api/types";
import { warningsIn } from "../api/warnings";
import { kindOf } from "../gallery/outputs";
import { useInfo } from "../state/info";
import { useLive } from "../state/live";
import { Icon } from "../ui";
import { fits, typeColour, typeName } from "./compat";
import { renameNode, resizeNode, toggleCollapsed } from "./edits";
import type { CardNode } from "./flow";
import { inHandle, outHandle } from "./flow";
import { definition, MODE, pair } from "./format";
import { TITLE } from "./metrics";
import { chosenFile, resultFiles, resultText } from "./pictures";
import { rowsOf, sortOf } from "./rows";
import { classSpec } from "./schema";
import type { InView, OutView } from "./slots";
import { inputsOf, outputsOf } from "./slots";
import { NoteText } from "./NoteText";
import { flatId, type Problem, useGraph } from "./store";
import { uploads, uploadTo, WidgetInput } from "./WidgetInput";
import css from "./NodeCard.module.css";

const far = (s: { transform: [number, number, number] }): boolean => s.transform[2] < 0.4;

/** A colour of a file, if it is one: anything else could be a piece of style sheet. */
const plainColour = (value: unknown): string | undefined => (typeof value === "string" && /^(#[0-9a-f]{3,8}|[a-z]{3,24})$/i.test(value) ? value : undefined);

/** Dark ink on light colours, light ink on dark ones. */
function inkOn(colour: string): string | undefined {
  const hex = /^#([0-9a-f]{3,8})$/i.exec(colour)?.[1];
  if (!hex) return undefined;
  const full = hex.length < 6 ? [...hex].map((c) => c + c).join("") : hex;
  const [r, g, b] = [0, 2, 4].map((i) => parseInt(full.slice(i, i + 2), 16) / 255) as [number, number, number];
  return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 > 0.2 ? "#1d1815" : "#fbf6ef";
}

function Socket({ view, side, node }: { view: InView | OutView; side: "in" | "out"; node: string }) {
  const dragging = useGraph((s) => s.dragging);
  const dim =
    dragging !== null &&
    (side === "in" ? dragging.side !== "out" || !fits(dragging.type, view.type) : dragging.side !== "in" || !fits(view.type, dragging.type));
  const linked = "key" in view ? view.link != null : view.links.length > 0;
  return (
    <Handle
      type={side === "in" ? "target" : "source"}
      position={side === "in" ? Position.Left : Position.Right}
      id={"key" in view ? inHandle(view.key) : outHandle(view.at)}
      className={`${css.socket} ${dim ? css.dim : ""} ${linked ? css.filled : ""} ${"key" in view && view.optional && !linked ? css.optional : ""}`}
      style={{ borderColor: typeColour(view.type), background: linked ? typeColour(view.type) : undefined }}
      title={`${view.label}: ${typeName(view.type)}`}
      role="img"
      aria-label={`${side === "in" ? "Input" : "Output"} ${view.label} of node ${node}, ${typeName(view.type)}`}
    />
  );
}

function Title({ id, title, renaming, done }: { id: string; title: string; renaming: boolean; done(): void }) {
  const [draft, setDraft] = useState(title);
  useEffect(() => setDraft(title), [title, renaming]);
  if (!renaming)
    return (
      <span className={css.name} title={title}>
        {title}
      </span>
    );
  const commit = () => {
    const { path, edit } = useGraph.getState();
    const scope = path.at(-1)?.def ?? null;
    if (draft.trim() !== title) edit((doc) => renameNode(doc, scope, id, draft.trim()));
    done();
  };
  return (
    <input
      autoFocus
      className={`${css.rename} nodrag`}
      aria-label="Title of the node"
      value={draft}
      onChange={(e) => setDraft(e.target.value)}
      onFocus={(e) => e.target.select()}
      onBlur={commit}
      onKeyDown={(e) => {
        e.stopPropagation();
        if (e.key === "Enter") commit();
        if (e.key === "Escape") done();
      }}
    />
  );
}

/** Progress of a node, or of anything inside a sub-graph's instance; only of runs started here. */
function useProgress(flat: string): { value: number; max: number } | null {
  const jobs = useGraph((s) => s.jobs);
  const text = useLive((s) => {
    const { running } = s;
    if (!running || !jobs.includes(running.id)) return "";
    const inside = running.node === flat || running.node?.startsWith(`${flat}:`);
    return inside ? `${running.value}/${running.max}` : "";
  });
  return useMemo(() => {
    if (text === "") return null;
    const [value, max] = text.split("/").map(Number);
    return { value: value ?? 0, max: max ?? 0 };
  }, [text]);
}

function useProblem(flat: string) {
  const within = (all: Record<string, Problem>) => all[flat] ?? Object.entries(all).find(([id]) => id.startsWith(`${flat}:`))?.[1];
  return useGraph((s) => within(s.errors) ?? within(s.lacks));
}

/** What is wrong with a node, in one line under it: the node keeps its size, whatever there is to say. The line opens to its
 *  whole length over its neighbours while it is looked at. */
function Notice({ kind, text, link }: { kind: "bad" | "warn"; text: string; link?: string | undefined }) {
  return (
    <div
      className={`${css.notice} ${kind === "warn" ? css.noticeWarn : ""} nodrag nopan nowheel`}
      role={kind === "bad" ? "alert" : "status"}
      tabIndex={0}
      title={text}
    >
      {text}
      {link && (
        <>
          {" "}
          <a href={link} target="_blank" rel="noopener noreferrer">
            Download
          </a>
        </>
      )}
    </div>
  );
}

/** A picture that says so where its file is gone. */
function Shown({ src, alt }: { src: string; alt: string }) {
  const [gone, setGone] = useState<string | null>(null);
  if (gone === src) return <span className={css.gone}>This picture is not here.</span>;
  return <img src={src} alt={alt} loading="lazy" draggable={false} onError={() => setGone(src)} />;
}

/** A result as it is seen or heard: films and sounds are played, pictures come in a smaller form. */
function Result({ file }: { file: FileRef }) {
  const kind = kindOf(file.filename);
  if (kind === "video") return <video className="nodrag" src={viewUrl(file)} controls loop muted playsInline aria-label={`Video ${file.filename}`} />;
  if (kind === "audio") return <audio className="nodrag" src={viewUrl(file)} controls aria-label={`Sound ${file.filename}`} />;
  return <Shown src={viewUrl(file, { preview: "webp", quality: 90 })} alt={`Picture ${file.filename}`} />;
}

function Pictures({ flat, chosen }: { flat: string; chosen: string | null }) {
  const output = useGraph((s) => s.results[flat]);
  const jobs = useGraph((s) => s.jobs);
  const live = useLive((s) => {
    const shown = s.running && jobs.includes(s.running.id) ? s.previews[s.running.id] : undefined;
    return shown?.node === flat ? shown.url : null;
  });
  const made = useMemo(() => resultFiles(output), [output]);
  const words = resultText(output);
  if (live)
    return (
      <div className={css.pictures}>
        <img src={live} alt="The picture so far" draggable={false} />
      </div>
    );
  if (made.length > 0) {
    return (
      <div className={`${css.pictures} ${made.length > 1 ? css.many : ""}`}>
        {made.slice(0, 16).map((file) => (
          <Result key={viewUrl(file)} file={file} />
        ))}
      </div>
    );
  }
  if (words) return <pre className={`${css.words} nowheel nodrag`}>{words}</pre>;
  return chosen ? (
    <div className={css.pictures}>
      <Shown src={chosen} alt="The chosen picture" />
    </div>
  ) : null;
}

export const NodeCard = memo(function NodeCard({ id, data, selected }: NodeProps<CardNode>) {
  const { node, scope, title } = data;
  const info = useInfo((s) => s.info);
  const spec = classSpec(info, node.type);
  // Only nodes without a class of their own look at the rest of the document.
  const doc = useGraph((s) => (spec ? null : s.history.present));
  const path = useGraph((s) => s.path);
  const flat = flatId(path, node.id);
  const low = useStore(far);
  const problem = useProblem(flat);
  const progress = useProgress(flat);
  const warnings = useGraph((s) => warningsIn(s.results[flat]).join("\n"));
  const [renaming, setRenaming] = useState(false);
  const update = useUpdateNodeInternals();

  const whole = doc ?? useGraph.getState().history.present;
  const sort = spec ? "class" : sortOf(whole, node, info);
  const def = spec ? undefined : definition(whole, node.type);
  const rows = useMemo(() => rowsOf(whole, scope, node, info), [doc, scope, node, info]); // eslint-disable-line
  const inputs = inputsOf(node, spec, def);
  const outputs = outputsOf(node, spec, def);
  const rowInputs = new Map(rows.flatMap((r) => (r.input === null ? [] : [[r.input, r] as const])));
  const sockets = inputs.filter((i) => !rowInputs.has(i.name));
  const collapsed = Boolean(node.flags?.collapsed);
  const slots = `${collapsed} ${inputs.map((i) => i.key).join()} ${outputs.length} ${rows.length}`;
  // React Flow measures a new node by itself; only sockets that come, go or move later must be told.
  const measured = useRef(slots);
  useEffect(() => {
    if (measured.current === slots) return;
    measured.current = slots;
    update(id);
  }, [id, slots, update]);

  const chosen = useMemo(() => {
    const file = chosenFile(rows);
    return file ? viewUrl(file, { preview: "webp" }) : null;
  }, [rows]);
  const muted = node.mode === MODE.mute;
  const bypassed = node.mode === MODE.bypass;
  const [, height] = pair(node.size, [0, 0]);
  const head = plainColour(node.color);
  const body = plainColour(node.bgcolor);
  const edit = useGraph.getState().edit;

  if (sort === "reroute") {
    const out = outputs[0];
    return (
      <div className={`${css.reroute} ${selected ? css.selected : ""}`} style={{ borderColor: typeColour(out?.type ?? "*") }}>
        {inputs[0] && <Socket view={inputs[0]} side="in" node={title} />}
        <span>{typeName(out?.type ?? "*")}</span>
        {out && <Socket view={out} side="out" node={title} />}
      </div>
    );
  }
  const drop = rows.find(uploads);
  return (
    <div
      className={`${css.card} ${selected ? css.selected : ""} ${muted ? css.muted : ""} ${bypassed ? css.bypassed : ""} ${sort === "missing" ? css.missing : ""} ${problem ? css.problem : ""} ${progress ? css.running : ""}`}
      style={{ minHeight: collapsed ? TITLE : height + TITLE, ...(body ? { background: body, color: inkOn(body) } : {}) }}
      data-class={node.type}
      onDragOver={drop ? (e) => e.dataTransfer.types.includes("Files") && e.preventDefault() : undefined}
      onDrop={
        drop
          ? (e) => {
              const file = [...e.dataTransfer.files].find((f) => f.type.startsWith("image/"));
              if (!file) return;
              e.preventDefault();
              e.stopPropagation();
              void uploadTo(file, (v) => edit((d) => drop.set(d, v)));
            }
          : undefined
      }
    >
      <div
        className={css.title}
        style={head && !muted && !bypassed ? { background: head, color: inkOn(head) } : undefined}
        onDoubleClick={(e) => {
          e.stopPropagation();
          if (sort === "instance") useGraph.getState().enter({ def: node.type, node: node.id });
          else setRenaming(true);
        }}
      >
        <button
          type="button"
          className={`${css.fold} nodrag`}
          aria-label={collapsed ? `Unfold ${title}` : `Fold ${title}`}
          aria-expanded={!collapsed}
          onClick={() => edit((d) => toggleCollapsed(d, scope, [node.id]))}
        >
          <Icon name={collapsed ? "right" : "chevron"} size={14} />
        </button>
        <Title id={id} title={title} renaming={renaming} done={() => setRenaming(false)} />
        {problem && (
          <span className={css.badge} title={problem.message}>
            <Icon name="warning" size={14} />
          </span>
        )}
        {muted && <span className={css.mode}>off</span>}
        {bypassed && <span className={css.mode}>bypass</span>}
        {sort === "instance" && (
          <button
            type="button"
            className={`${css.fold} nodrag`}
            aria-label={`Open ${title}`}
            title="Open the sub-graph"
            onClick={() => useGraph.getState().enter({ def: node.type, node: node.id })}
          >
            <Icon name="layers" size={15} />
          </button>
        )}
      </div>
      {progress && (
        <div
          className={css.progress}
          role="progressbar"
          aria-label={`Progress of ${title}`}
          aria-valuemin={0}
          aria-valuemax={progress.max || 1}
          aria-valuenow={progress.value}
        >
          <i style={{ width: progress.max > 0 ? `${(100 * progress.value) / progress.max}%` : "100%" }} className={progress.max > 0 ? undefined : css.busy} />
        </div>
      )}
      {collapsed ? (
        <div className={css.stack}>
          {inputs.map((i) => (
            <Socket key={i.key} view={i} side="in" node={title} />
          ))}
          {outputs.map((o) => (
            <Socket key={o.at} view={o} side="out" node={title} />
          ))}
        </div>
      ) : (
        <div className={css.body}>
          {(sockets.length > 0 || outputs.length > 0) && (
            <div className={css.sockets}>
              <ul>
                {sockets.map((i) => (
                  <li key={i.key} className={problem?.inputs[i.name] ? css.wrong : undefined} title={problem?.inputs[i.name]}>
                    <Socket view={i} side="in" node={title} />
                    {i.label || typeName(i.type)}
                  </li>
                ))}
              </ul>
              <ul className={css.right}>
                {outputs.map((o) => (
                  <li key={o.at}>
                    {o.label}
                    <Socket view={o} side="out" node={title} />
                  </li>
                ))}
              </ul>
            </div>
          )}
          {rows.map((row) => {
            const view = row.input === null ? undefined : inputs.find((i) => i.name === row.input);
            return (
              <div key={row.key} className={`${css.row} ${row.spec.kind === "multiline" ? css.tall : ""}`}>
                {view && <Socket view={view} side="in" node={title} />}
                {sort === "note" ? (
                  <NoteText row={row} node={flat} title={title} />
                ) : low ? (
                  <div className={`${css.plain} ${row.control !== null ? css.double : ""}`} />
                ) : (
                  <WidgetInput row={row} node={flat} error={problem?.inputs[row.key]} />
                )}
              </div>
            );
          })}
          <Pictures flat={flat} chosen={chosen} />
        </div>
      )}
      {(problem ?? sort === "missing") ? (
        <Notice kind="bad" text={problem?.message ?? `Fresco has no node “${node.type}”. It is kept as it is.`} link={problem?.link} />
      ) : (
        warnings && <Notice kind="warn" text={warnings} />
      )}
      {selected && !collapsed && (
        <NodeResizeControl
          minWidth={120}
          minHeight={TITLE + 20}
          className={css.resize}
          onResizeEnd={(_, p) => edit((d) => resizeNode(d, scope, node.id, [p.x, p.y + TITLE], [p.width, p.height - TITLE]))}
        />
      )}
    </div>
  );
});
