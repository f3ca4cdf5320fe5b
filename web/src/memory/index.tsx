// The Memory view: devices, models, why they are where they are, and the two buttons that make room.
import { useState } from "react";
import { ApiError, sendJson } from "../api/client";
import { go } from "../state/handoff";
import { useLive } from "../state/live";
import { Button, Dialog, Disclosure, EmptyState, toast, View } from "../ui";
import { DeviceCard } from "./DeviceCard";
import { EventList } from "./EventList";
import { ModelFile } from "./ModelCard";
import { Packs } from "./Packs";
import { useMemory } from "./store";
import type { FreeReport, Model } from "./types";
import { fileName, freedSentence, inMemory, keptAmong, keptLine } from "./words";
import css from "./memory.module.css";

const ORDER = ["diffusion", "clip", "vae"];
const place = (m: Model) => (ORDER.indexOf(m.component) + ORDER.length + 1) % (ORDER.length + 1);

/** Models by file, the most recently used file first. */
function byFile(models: Model[]): [string, Model[]][] {
  const files = new Map<string, Model[]>();
  for (const m of models) {
    const key = m.content.join("|") || m.weights_id;
    files.set(key, [...(files.get(key) ?? []), m]);
  }
  const used = (list: Model[]) => Math.max(...list.map((m) => m.last_used ?? 0));
  return [...files.entries()]
    .map(([key, list]): [string, Model[]] => [key, [...list].sort((a, b) => place(a) - place(b))])
    .sort((a, b) => used(b[1]) - used(a[1]) || a[0].localeCompare(b[0]));
}

type What = "unload" | "free";

interface FreeProps {
  refresh(): Promise<void>;
  empty: boolean;
  models: Model[];
  /** Whether there is another place than main memory, from which models can be unloaded. */
  gpus: boolean;
}

function FreeButtons({ refresh, empty, models, gpus }: FreeProps) {
  const [busy, setBusy] = useState<What | null>(null);
  // What was asked for while it would take models that are to be kept.
  const [asking, setAsking] = useState<What | null>(null);
  const kept = asking ? keptAmong(models, asking === "free") : [];
  const free = async (what: What, retention: "override" | "respect") => {
    setAsking(null);
    setBusy(what);
    const forget = useLive.getState().running
      ? toast("A picture is being made. Memory is freed as soon as it is done.", "info", { duration: 0 })
      : () => undefined;
    try {
      const body = { unload_models: true, ...(what === "free" && { free_memory: true }), retention, wait: true };
      const report = await sendJson<FreeReport>("POST", "/api/free", body);
      const stayed = retention === "respect" ? keptAmong(models, what === "free").length : 0;
      const rest = stayed === 0 ? "" : stayed === 1 ? " 1 kept model stayed." : ` ${stayed} kept models stayed.`;
      toast(`${freedSentence(report, what === "free")}${rest}`, report.models.some((m) => m.error) ? "warn" : "good");
    } catch (e) {
      toast(e instanceof ApiError ? [e.message, e.details].filter(Boolean).join(": ") : String(e), "bad");
    } finally {
      forget();
      setBusy(null);
      void refresh();
    }
  };
  const ask = (what: What) => (keptAmong(models, what === "free").length > 0 ? setAsking(what) : void free(what, "override"));
  return (
    <>
      {gpus && (
        <Button
          icon="eject"
          busy={busy === "unload"}
          disabled={busy !== null || empty}
          onClick={() => ask("unload")}
          title="Moves all models from the GPUs to main memory. They come back when they are needed."
        >
          Unload models
        </Button>
      )}
      <Button
        icon="trash"
        busy={busy === "free"}
        disabled={busy !== null}
        onClick={() => ask("free")}
        title="Ejects all models from memory and discards node results."
      >
        Free model and node cache
      </Button>
      <Dialog
        open={asking !== null}
        onClose={() => setAsking(null)}
        title={kept.length === 1 ? "One model is set to stay" : "Some models are set to stay"}
        actions={
          <>
            <Button variant="quiet" onClick={() => setAsking(null)}>
              Cancel
            </Button>
            <Button onClick={() => asking && void free(asking, "respect")}>Free only the others</Button>
            <Button variant="danger" icon="eject" onClick={() => asking && void free(asking, "override")}>
              {asking === "free" ? (kept.length === 1 ? "Eject it too" : "Eject them too") : kept.length === 1 ? "Unload it too" : "Unload them too"}
            </Button>
          </>
        }
      >
        <p>
          {asking === "free"
            ? kept.length === 1
              ? "Freeing everything would also eject this model:"
              : "Freeing everything would also eject these models:"
            : kept.length === 1
              ? "Unloading everything would also move this model to main memory:"
              : "Unloading everything would also move these models to main memory:"}
        </p>
        <ul className={css.kept}>
          {kept.map((m) => (
            <li key={m.weights_id}>{keptLine(m)}</li>
          ))}
        </ul>
      </Dialog>
    </>
  );
}

export default function Memory() {
  const { overview, error, refresh } = useMemory();
  const models = overview?.models ?? [];
  const loaded = models.filter((m) => inMemory(m) > 0);
  const away = models.filter((m) => inMemory(m) === 0);
  return (
    <View
      title="Memory"
      lead="What is loaded, where it is, and why. A model that was moved out comes back by itself when a picture needs it."
      actions={<FreeButtons refresh={refresh} empty={loaded.length === 0} models={models} gpus={overview?.devices.some((d) => d.type !== "cpu") ?? false} />}
    >
      {error && !overview && (
        <EmptyState
          icon="warning"
          title="Memory cannot be shown"
          action={
            <Button icon="refresh" onClick={() => void refresh()}>
              Try again
            </Button>
          }
        >
          {error}
        </EmptyState>
      )}
      {!error && !overview && (
        <p role="status" className={css.soft}>
          Loading…
        </p>
      )}
      {overview && (
        <div className={css.parts}>
          <section aria-labelledby="memory-devices">
            <h2 id="memory-devices" className={css.heading}>
              Devices
            </h2>
            <div className={css.devices}>
              {overview.devices.map((d) => (
                <DeviceCard key={d.device} device={d} />
              ))}
            </div>
          </section>
          <section aria-labelledby="memory-models">
            <h2 id="memory-models" className={css.heading}>
              Models in memory
            </h2>
            {loaded.length === 0 && (
              <EmptyState
                icon="memory"
                title="No model is loaded"
                action={
                  <Button variant="primary" icon="create" onClick={() => go("#/create")}>
                    Make a picture
                  </Button>
                }
              >
                <p>
                  When you make a picture, its models appear here: how large they are, which device they are on, and why. You can then keep the ones you use
                  often and eject the others.
                </p>
              </EmptyState>
            )}
            <div className={css.models}>
              {byFile(loaded).map(([key, list]) => (
                <ModelFile key={key} models={list} devices={overview.devices} decisions={overview.decisions} refresh={refresh} />
              ))}
            </div>
          </section>
          {away.length > 0 && (
            <Disclosure title="Known, but not in memory now" aside={`${away.length}`}>
              <ul className={css.away}>
                {away.map((m) => (
                  <li key={m.weights_id}>
                    {fileName(m)} <span className={css.soft}>({m.component.replaceAll("_", " ")})</span>
                  </li>
                ))}
              </ul>
              <p className={css.soft}>They are read from their files when a picture needs them.</p>
            </Disclosure>
          )}
          <Packs />
          {overview.decisions.length > 0 && (
            <Disclosure title="Recent activity">
              <EventList events={overview.decisions} models={models} />
            </Disclosure>
          )}
        </div>
      )}
    </View>
  );
}
