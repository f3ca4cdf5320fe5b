// All apps as cards, the ready-made ones, and the place where a workflow becomes a new one.
import { useEffect, useState } from "react";
import { onBack } from "../api/client";
import type { ObjectInfo } from "../api/types";
import { go } from "../state/handoff";
import { remembered } from "../state/settings";
import { Button, Dialog, DropZone, Field, Icon, Menu, Picture, TextArea, toast, toastUndo, View } from "../ui";
import type { AppFile } from "./appFile";
import { addApp, download, type Listed, listApps, renameApp, takeAway } from "./library";
import { NameDialog } from "./NameDialog";
import { sentenceOf } from "./open";
import { SavedWorkflows } from "./SavedWorkflows";
import { firstCheckpoint, starters } from "./starters";
import { useHeading } from "./useHeading";
import { draftId, getDraft, moveWork } from "./work";
import css from "./AppList.module.css";

export interface AppListProps {
  info: ObjectInfo | null;
  /** What was wrong with the last file. */
  trouble: string;
  busy: boolean;
  onFile(file: File): void;
  onText(text: string): void;
  onSaved(path: string): void;
}

export function AppList({ info, trouble, busy, onFile, onText, onSaved }: AppListProps) {
  useHeading("Apps");
  const [apps, setApps] = useState<Listed[] | null>(null);
  const [failed, setFailed] = useState("");
  const [pasting, setPasting] = useState(false);
  const [pasted, setPasted] = useState("");
  const [choosing, setChoosing] = useState(false);
  const [renaming, setRenaming] = useState<string | null>(null);
  const refresh = () =>
    listApps().then(
      (found) => {
        setApps(found);
        setFailed("");
      },
      (e: unknown) => setFailed(sentenceOf(e)),
    );
  useEffect(() => {
    void refresh();
    return onBack(() => void refresh());
  }, []);

  const attempt = async (work: () => Promise<unknown>) => {
    try {
      await work();
    } catch (e) {
      toast(sentenceOf(e), "bad");
    }
    await refresh();
  };
  const draft = getDraft();

  return (
    <View title="Apps" lead="Any ComfyUI workflow as a short form.">
      <div className={css.open}>
        <DropZone
          accept=".json,application/json,image/png,image/webp,video/mp4,video/webm,audio/*,.flac,.mp3,.opus"
          onFile={onFile}
          label={busy ? "Reading it…" : "Drop a workflow, or choose a file"}
          hint="A workflow or app file (JSON), or a picture, video or sound made by ComfyUI or Fresco"
        />
        <div className={css.ways}>
          <Button icon="copy" onClick={() => setPasting(true)}>
            Paste a workflow
          </Button>
          <Button icon="folder" onClick={() => setChoosing(true)}>
            Saved workflows
          </Button>
        </div>
        {trouble && (
          <p className={css.trouble} role="alert">
            <Icon name="warning" /> <span>{trouble}</span>
          </p>
        )}
        {draft && (
          <p className={css.draft}>
            <span>"{draft.name}" is open but not saved.</span>{" "}
            <Button size="s" variant="quiet" onClick={() => go(`#/apps/${draftId}`)}>
              Continue
            </Button>
          </p>
        )}
      </div>

      <h2 className={css.heading}>Your apps</h2>
      {failed && (
        <p className={css.trouble} role="alert">
          <Icon name="warning" /> <span>Your apps cannot be listed. {failed}</span>
        </p>
      )}
      {apps?.length === 0 && <p className={css.about}>None yet. Open a workflow or a ready-made app, then press "Save as an app".</p>}
      {!apps && !failed && (
        <p className={css.about} role="status">
          Loading…
        </p>
      )}
      <ul className={css.cards}>
        {apps?.map(({ name, app, trouble: bad }) => (
          <AppCard
            key={name}
            name={name}
            app={app}
            trouble={bad}
            onRename={() => setRenaming(name)}
            onDuplicate={() => app && void attempt(() => addApp(app))}
            onDelete={() =>
              void attempt(async () => {
                const back = await takeAway(name);
                if (back) toastUndo(`Deleted "${name}"`, () => void attempt(back));
              })
            }
          />
        ))}
      </ul>

      <h2 className={css.heading}>Ready-made</h2>
      {info && !firstCheckpoint(info) && <p className={css.about}>These need a model. Put one into the models folder first.</p>}
      <ul className={css.cards}>
        {starters.map((starter) => (
          <li key={starter.id} className={css.card}>
            <a className={css.link} href={`#/apps/~${starter.id}`}>
              <span className={css.blank}>
                <Icon name={starter.id === "words" ? "create" : starter.id === "change" ? "brush" : "zoomIn"} size={32} />
              </span>
              <span className={css.name}>{starter.name}</span>
              <span className={css.about}>{starter.about}</span>
            </a>
          </li>
        ))}
      </ul>

      <Dialog
        open={pasting}
        onClose={() => setPasting(false)}
        title="Paste a workflow"
        actions={
          <>
            <Button onClick={() => setPasting(false)}>Cancel</Button>
            <Button
              variant="primary"
              disabled={!pasted.trim()}
              onClick={() => {
                setPasting(false);
                onText(pasted);
                setPasted("");
              }}
            >
              Open
            </Button>
          </>
        }
      >
        <Field label="Workflow as JSON">
          <TextArea rows={8} value={pasted} onChange={setPasted} spellCheck={false} autoFocus />
        </Field>
      </Dialog>
      <SavedWorkflows
        open={choosing}
        onClose={() => setChoosing(false)}
        onChoose={(path) => {
          setChoosing(false);
          onSaved(path);
        }}
      />
      <NameDialog
        open={renaming !== null}
        title="Rename"
        first={renaming ?? ""}
        action="Rename"
        onClose={() => setRenaming(null)}
        onName={(name) => {
          const from = renaming;
          setRenaming(null);
          if (from && from !== name)
            void attempt(async () => {
              await renameApp(from, name);
              moveWork(from, name);
            });
        }}
      />
    </View>
  );
}

interface CardProps {
  name: string;
  app: AppFile | null;
  trouble: string;
  onRename(): void;
  onDuplicate(): void;
  onDelete(): void;
}

function AppCard({ name, app, trouble, onRename, onDuplicate, onDelete }: CardProps) {
  const changed = remembered<unknown>(`apps.work.${name}`, null) !== null;
  return (
    <li className={css.card}>
      <a className={css.link} href={`#/apps/${encodeURIComponent(name)}`}>
        {app?.thumbnail ? (
          <Picture file={app.thumbnail} alt="" preview className={css.picture} />
        ) : (
          <span className={css.blank}>
            <Icon name={trouble ? "warning" : "apps"} size={32} />
          </span>
        )}
        <span className={css.name}>{name}</span>
        {trouble ? (
          <span className={css.bad}>{trouble}</span>
        ) : (
          <span className={css.about}>
            {app?.about || `${app?.form.shown.length ?? 0} fields`}
            {changed ? ", with unsaved changes" : ""}
          </span>
        )}
      </a>
      <div className={css.menu}>
        <Menu
          button={{ label: `Actions for ${name}`, icon: "more" }}
          items={[
            { label: "Rename", icon: "edit", disabled: !app, onSelect: onRename },
            { label: "Duplicate", icon: "copy", disabled: !app, onSelect: onDuplicate },
            { label: "Download as a file", icon: "download", disabled: !app, onSelect: () => app && download(app) },
            { label: "Delete", icon: "trash", danger: true, onSelect: onDelete },
          ]}
        />
      </div>
    </li>
  );
}
