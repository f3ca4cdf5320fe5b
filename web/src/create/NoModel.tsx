// What to do when there is no model at all: where to put one, and a way to look again.
import { useEffect, useState } from "react";
import { getJson } from "../api/client";
import { useInfo } from "../state/info";
import { Button, EmptyState, toast } from "../ui";
import { drawingModels } from "./detected";
import { AWAY } from "./errors";
import css from "./NoModel.module.css";

export function NoModel() {
  const [folder, setFolder] = useState("models/checkpoints");
  const [looking, setLooking] = useState(false);
  useEffect(() => {
    getJson<Record<string, string[]>>("/internal/folder_paths").then(
      (paths) => setFolder((old) => paths?.checkpoints?.[0] ?? old),
      () => undefined,
    );
  }, []);
  const look = async () => {
    setLooking(true);
    try {
      await useInfo.getState().reload();
      if (drawingModels(useInfo.getState().models).length === 0) toast("There is still no model in that folder.", "info");
    } catch {
      toast(AWAY, "bad");
    } finally {
      setLooking(false);
    }
  };
  return (
    <EmptyState
      icon="layers"
      title="One thing is missing: a model"
      action={
        <Button variant="primary" size="l" icon="refresh" busy={looking} onClick={() => void look()}>
          Look again
        </Button>
      }
    >
      <p>
        A model is the file that knows how to draw. Put one (a checkpoint, usually a <code>.safetensors</code> file) into this folder on the computer that runs
        Fresco:
      </p>
      <p className={css.folder}>
        <code>{folder}</code>
      </p>
      <p>Then press the button. You do not need to restart Fresco.</p>
    </EmptyState>
  );
}
