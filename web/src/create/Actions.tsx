// What can be done with a finished picture.
import { viewUrl } from "../api/client";
import type { FileRef, JobDetails } from "../api/types";
import { go, setHandoff } from "../state/handoff";
import { Button, IconButton, Menu, toast } from "../ui";
import { adopt } from "./adopt";
import { upscaleValues, variationValues, wordsFitAll } from "./build";
import { enlarged } from "./family";
import { storedSize } from "./pictures";
import { download, valuesOf } from "./results";
import { useCreate } from "./store";
import { CHANGE_AREA, type CreateValues, rollSeed, withImage } from "./values";
import { usePainter } from "./painter";
import css from "./Actions.module.css";

export interface ActionsProps {
  details: JobDetails;
  file: FileRef;
  /** Called when something is done that is seen elsewhere, to close a window over it. */
  onLeave?(): void;
}

/** What can be done with a film or a sound. */
export function MediaActions({ details, file }: ActionsProps) {
  return (
    <div className={css.actions} role="group" aria-label="What to do with this file">
      <Button icon="download" onClick={() => download(viewUrl(file), file.filename)}>
        Download
      </Button>
      <Button icon="gallery" onClick={() => go(`#/gallery/${encodeURIComponent(details.id)}`)}>
        Show in Gallery
      </Button>
    </div>
  );
}

export function Actions({ details, file, onLeave }: ActionsProps) {
  const { values: form, queue, update } = useCreate();
  const found = valuesOf(details);
  const values: CreateValues = { ...(found ?? form), model: found?.model || form.model };
  // A picture that was only enlarged has no words and settings of its own to go on from.
  const drawn = found?.redraw === true;

  const measured = async () => {
    try {
      return await storedSize(file);
    } catch {
      toast("The picture's file is gone.", "bad");
      return null;
    }
  };
  const upscale = async () => {
    const size = await measured();
    if (!size) return;
    const to = enlarged(size);
    if (!to) {
      toast(`It is already ${size.width} × ${size.height}, the largest size that fits here.`, "info");
      return;
    }
    onLeave?.();
    const queued = await queue(upscaleValues(values, file, size, to));
    if (queued && !wordsFitAll(values)) toast("It is upscaled without redrawing, because its prompt describes only a part of it.", "info");
  };
  const vary = async (close: boolean) => {
    const size = await measured();
    if (!size) return;
    onLeave?.();
    await queue(variationValues(values, file, size, close, rollSeed()));
  };
  const startFrom = async (paint: boolean) => {
    const size = await measured();
    if (!size) return;
    onLeave?.();
    const before = useCreate.getState().values;
    // The words come along where the form has none of its own.
    update((v) => withImage({ ...v, prompt: v.prompt.trim() || !drawn ? v.prompt : values.prompt }, file, size));
    if (paint) {
      update((v) => ({ ...v, denoise: CHANGE_AREA }));
      usePainter.getState().start(before);
    } else {
      toast("It is now the start picture. Describe what should change, then press Create.", "good");
    }
  };
  const copy = () => {
    onLeave?.();
    void adopt(values);
    toast("Its settings are in the form. The seed is locked, so Create makes the same picture again.", "good");
  };
  const graph = () => {
    onLeave?.();
    setHandoff({ to: "graph", workflow: details.workflow.extra_data.extra_pnginfo?.workflow, prompt: details.workflow.prompt });
    go("#/graph");
  };
  return (
    <div className={css.actions} role="group" aria-label="What to do with this picture">
      <Button icon="zoomIn" onClick={() => void upscale()} disabled={!found}>
        Upscale
      </Button>
      <Menu
        align="start"
        button={{ label: "Variations", icon: "copy", words: true, variant: "plain" }}
        items={[
          { label: "Four new from the same prompt", icon: "dice", onSelect: () => void vary(false), disabled: !drawn },
          { label: "Four similar pictures", icon: "copy", onSelect: () => void vary(true), disabled: !drawn },
        ]}
      />
      <Button icon="brush" onClick={() => void startFrom(true)}>
        Edit area
      </Button>
      <Button icon="image" onClick={() => void startFrom(false)}>
        Start from this
      </Button>
      <IconButton variant="plain" label="Download" icon="download" onClick={() => download(viewUrl(file), file.filename)} />
      <Menu
        button={{ label: "More", icon: "more", variant: "plain" }}
        items={[
          { label: "Use its settings", icon: "settings", onSelect: copy, disabled: !drawn },
          { label: "Open in Graph", icon: "graph", onSelect: graph },
          {
            label: "Show in Gallery",
            icon: "gallery",
            onSelect: () => {
              onLeave?.();
              go(`#/gallery/${encodeURIComponent(details.id)}`);
            },
          },
        ]}
      />
    </div>
  );
}
