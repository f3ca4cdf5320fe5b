// What one run gave: its pictures, films, sounds and texts, or why it gave nothing.
import { viewUrl } from "../api/client";
import type { ApiPrompt, ObjectInfo } from "../api/types";
import { warningsOf } from "../api/warnings";
import { go, setHandoff } from "../state/handoff";
import { Icon, IconButton, Menu, Picture, toast, Warnings } from "../ui";
import { titleOf } from "./graph";
import { failureOf } from "./problems";
import type { ResultFile } from "./results";
import type { Run } from "./useRuns";
import css from "./ResultView.module.css";

export interface ResultViewProps {
  run: Run;
  prompt: ApiPrompt;
  info: ObjectInfo;
  onReuse(prompt: ApiPrompt): void;
  onRemove(): void;
}

export function ResultView({ run, prompt, info, onReuse, onRemove }: ResultViewProps) {
  const used = run.details?.workflow?.prompt ?? prompt;
  const several = new Set(run.results.files.map((f) => f.node)).size + new Set(run.results.texts.map((t) => t.node)).size > 1;
  const empty = !run.results.files.length && !run.results.texts.length;
  const menu = (
    <Menu
      align="end"
      button={{ label: "Actions for this result", icon: "more" }}
      items={[
        ...(run.details ? [{ label: "Use its settings", icon: "undo" as const, onSelect: () => onReuse(used) }] : []),
        ...firstPicture(run, (file) => {
          setHandoff({ to: "create", image: file, mode: "image" });
          go("#/create");
        }),
        { label: "Show in Gallery", icon: "gallery", onSelect: () => go(`#/gallery/${encodeURIComponent(run.id)}`) },
        { label: "Remove from this list", icon: "close", onSelect: onRemove },
      ]}
    />
  );
  return (
    <section className={css.result} aria-label="Result">
      {run.status === "failed" && (
        <div className={css.failed} role="alert">
          <Icon name="warning" />
          <p>{failureOf(run.details?.execution_error, used, info)}</p>
        </div>
      )}
      {run.status === "cancelled" && <p className={css.note}>Cancelled.</p>}
      {run.status === "completed" && empty && <p className={css.note}>Done. This run produced nothing new to show.</p>}
      <Warnings list={warningsOf(run.details?.outputs)} />
      <div className={css.files}>
        {run.results.files.map((result) => (
          <figure key={`${result.file.type}/${result.file.subfolder}/${result.file.filename}`} className={css.file}>
            <Media result={result} title={titleOf(used, info, result.node)} />
            <figcaption className={css.caption}>
              <span>{several ? titleOf(used, info, result.node) : ""}</span>
              <span className={css.actions}>
                <a className={css.link} href={viewUrl(result.file)} download={result.file.filename}>
                  <Icon name="download" size={18} /> Download
                </a>
                {run.results.files.length === 1 && menu}
              </span>
            </figcaption>
          </figure>
        ))}
      </div>
      {run.results.texts.map((entry, index) => (
        <figure key={`${entry.node}-${index}`} className={css.text}>
          <figcaption className={css.caption}>
            <span>{titleOf(used, info, entry.node)}</span>
            <IconButton
              size="s"
              icon="copy"
              label="Copy this text"
              onClick={() => void navigator.clipboard?.writeText(entry.text).then(() => toast("Copied", "good"))}
            />
          </figcaption>
          <pre>{entry.text}</pre>
        </figure>
      ))}
      {run.results.files.length !== 1 && <div className={css.foot}>{menu}</div>}
    </section>
  );
}

function firstPicture(run: Run, use: (file: ResultFile["file"]) => void) {
  const found = run.results.files.find((f) => f.kind === "picture");
  return found ? [{ label: "Start from this", icon: "brush" as const, onSelect: () => use(found.file) }] : [];
}

function Media({ result, title }: { result: ResultFile; title: string }) {
  const url = viewUrl(result.file);
  if (result.kind === "picture")
    return (
      <a href={url} target="_blank" rel="noreferrer" className={css.frame}>
        <Picture file={result.file} alt={`${title}: ${result.file.filename}`} className={css.picture} eager />
      </a>
    );
  if (result.kind === "video") return <video src={url} controls loop muted className={css.picture} aria-label={result.file.filename} />;
  if (result.kind === "audio") return <audio src={url} controls className={css.sound} aria-label={result.file.filename} />;
  return <p className={css.note}>{result.file.filename}</p>;
}
