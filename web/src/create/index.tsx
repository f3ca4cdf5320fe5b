// The Create view: words in, pictures out.
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { inspectWorkflow } from "../api/client";
import { onHandoff, takeHandoff } from "../state/handoff";
import { useInfo } from "../state/info";
import { useLive } from "../state/live";
import { EmptyState, Icon, toast } from "../ui";
import { adopt } from "./adopt";
import { drawingModels } from "./detected";
import { AWAY, problemOf, problemOfRun } from "./errors";
import { followed, groupJobs, isComing, ownJobs } from "./groups";
import { MaskPainter } from "./MaskPainter";
import { Milestones } from "./Milestones";
import { NoModel } from "./NoModel";
import { watchPace } from "./pace";
import { usePainter } from "./painter";
import { sendPicture } from "./pictures";
import { ProblemNote } from "./ProblemNote";
import { PromptBox } from "./PromptBox";
import { ModelField, Settings } from "./Settings";
import { Stage } from "./Stage";
import { StartPicture } from "./StartPicture";
import { adoptModel, useCreate } from "./store";
import { Strip } from "./Strip";
import { valuesFrom, withImage, withMask, withoutStart } from "./values";
import css from "./index.module.css";

export default function Create() {
  const { values, set, update, submit, problem, report, marks, mark, shown, show, asked, opened } = useCreate();
  const info = useInfo();
  const jobs = useLive((s) => s.jobs);
  const created = useLive((s) => s.created);
  const loaded = useLive((s) => s.loaded);
  const connected = useLive((s) => s.connected);
  const painter = usePainter();
  const models = drawingModels(info.models);
  const prompt = useRef<HTMLTextAreaElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const stage = useRef<HTMLElement>(null);
  const [sending, setSending] = useState(false);
  const [over, setOver] = useState(false);

  // Asked once, and again when the server is back; not after every failure, which would never end.
  useEffect(
    () =>
      void useInfo
        .getState()
        .load()
        .catch(() => undefined),
    [connected],
  );
  // A new list with every call; its names say whether it is another one.
  const names = models.join("\n");
  useEffect(() => adoptModel(names ? names.split("\n") : []), [names]);
  useEffect(() => watchPace(), []);
  useHandoff();

  const takeFile = useCallback(
    async (file: File) => {
      setSending(true);
      try {
        const sent = await sendPicture(file, file.name);
        update((v) => withImage(v, sent.file, sent.size));
        void offerSettings(file);
      } catch (e) {
        const sentence = e instanceof Error && !("status" in e) ? e.message : problemOf(e).text;
        toast(sentence, "bad");
      } finally {
        setSending(false);
      }
    },
    [update],
  );

  // Works wherever the focus is, also when it is nowhere.
  useEffect(() => {
    const enter = (e: KeyboardEvent) => {
      if (e.key !== "Enter" || !(e.ctrlKey || e.metaKey) || document.querySelector("dialog[open]")) return;
      e.preventDefault();
      button.current?.click();
    };
    document.addEventListener("keydown", enter);
    return () => document.removeEventListener("keydown", enter);
  }, []);

  // A picture may be pasted anywhere on the page.
  useEffect(() => {
    const paste = (e: ClipboardEvent) => {
      const file = Array.from(e.clipboardData?.files ?? []).find((f) => f.type.startsWith("image/"));
      if (!file || e.defaultPrevented) return;
      e.preventDefault();
      void takeFile(file);
    };
    document.addEventListener("paste", paste);
    return () => document.removeEventListener("paste", paste);
  }, [takeFile]);

  const groups = useMemo(() => groupJobs(ownJobs(created, opened, jobs)), [created, opened, jobs]);
  const group = groups.find((g) => g.id === shown || g.jobs.some((j) => j.id === shown)) ?? followed(groups, !asked);
  // The field that a failed job of this visit was about is marked until something is changed.
  const failed = asked ? groups[0]?.jobs.find((j) => j.status === "failed") : undefined;
  useEffect(() => {
    if (failed) mark(problemOfRun(failed.execution_error).fields);
    // The job's list entry is a new object with every refresh; its id says whether it is another job.
  }, [failed?.id, mark]);
  const waiting = jobs.filter(isComing).length;
  const create = async () => {
    const queued = await submit();
    if (!queued) return;
    if (waiting > 0) toast("Added to the queue.", "good");
    // On a phone the stage is below the button; bring it into sight.
    stage.current?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  };

  const fields = problem?.fields ?? marks;
  if (info.info && models.length === 0) {
    return (
      <div className={css.alone}>
        <h1 className="hidden-visually">Create</h1>
        <NoModel />
      </div>
    );
  }
  return (
    <div
      className={css.create}
      data-over={over || undefined}
      onDragEnter={(e) => e.dataTransfer.types.includes("Files") && setOver(true)}
      onDragOver={(e) => e.preventDefault()}
      onDragLeave={(e) => !e.currentTarget.contains(e.relatedTarget as Node | null) && setOver(false)}
      onDropCapture={() => setOver(false)}
      onDrop={(e) => {
        e.preventDefault();
        const file = Array.from(e.dataTransfer.files).find((f) => f.type.startsWith("image/"));
        if (file) void takeFile(file);
        else toast("Only pictures can be dropped here. Drop workflows on Apps.", "info");
      }}
    >
      <div className={css.ask}>
        <h1>What would you like to see?</h1>
        <PromptBox values={values} set={set} onCreate={() => void create()} waiting={waiting} disabled={!info.info} promptRef={prompt} createRef={button}>
          <ModelField values={values} models={models} error={fields.model} />
        </PromptBox>
        {problem && <ProblemNote problem={problem} onClose={() => report(null)} />}
        {info.error && !info.info && (
          <ProblemNote problem={{ text: AWAY, details: info.error, fields: {} }} onRetry={() => void info.reload().catch(() => undefined)} />
        )}
      </div>
      <section ref={stage} className={css.stage} aria-label="Pictures">
        {group ? (
          <Stage key={group.id} group={group} />
        ) : (
          loaded && (
            <div className={css.blank}>
              <EmptyState icon="create" title="Your first picture will appear here">
                Describe what you would like to see and press Create. You can watch the picture take shape.
              </EmptyState>
            </div>
          )
        )}
        {groups.length > 0 && <Strip groups={groups} shown={group?.id ?? null} onShow={show} />}
      </section>
      <div className={css.settings}>
        <StartPicture values={values} set={set} update={update} busy={sending} onFile={(f) => void takeFile(f)} error={fields.image ?? fields.denoise} />
        <Settings values={values} set={set} update={update} models={models} fields={fields} />
      </div>
      {over && (
        <div className={css.drop} aria-hidden="true">
          <Icon name="image" size={40} />
          <p>Drop to start from this picture</p>
        </div>
      )}
      {painter.open && values.image && (
        <MaskPainter
          key={values.image.filename}
          image={values.image}
          mask={values.mask}
          values={values}
          set={set}
          onClose={() => {
            const { before } = painter;
            painter.stop();
            if (before) update((v) => withoutStart(v, before));
          }}
          onDone={(mask, run) => {
            update((v) => withMask(v, mask));
            painter.stop();
            if (run) void create();
            else prompt.current?.focus();
          }}
        />
      )}
      <Milestones group={group} />
    </div>
  );
}

/** A picture that Fresco or ComfyUI made knows how it was made. */
async function offerSettings(file: File): Promise<void> {
  try {
    const found = valuesFrom((await inspectWorkflow(file)).prompt);
    if (!found?.prompt) return;
    const { image: _image, imageSize: _size, mask: _mask, width: _width, height: _height, count: _count, denoise: _denoise, ...rest } = found;
    toast("This picture contains the settings it was made with.", "info", {
      action: {
        label: "Use its settings",
        onSelect: () =>
          useCreate
            .getState()
            .update((v) => ({ ...v, ...rest, model: rest.model && drawingModels(useInfo.getState().models).includes(rest.model) ? rest.model : v.model })),
      },
    });
  } catch {
    // An ordinary picture.
  }
}

/** Takes what another view left: settings, a picture, or both. */
function useHandoff() {
  useEffect(() => {
    const take = () => {
      const left = takeHandoff("create");
      if (!left) return;
      if (left.job) useCreate.getState().bring(left.job);
      // Whoever starts from a picture wants another one, so its seed stays behind.
      const { seed, ...rest } = left.values ?? {};
      const values = left.image ? { ...rest, image: left.image, mask: null } : { ...rest, ...(seed !== undefined && { seed }) };
      void adopt(values, left.mode === "inpaint");
    };
    take();
    return onHandoff(take);
  }, []);
}
