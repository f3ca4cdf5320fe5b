// The parts of one model file: size, place, how long each stays, and why it is where it is.
import { useState } from "react";
import { ApiError, sendJson } from "../api/client";
import { ago, bytes } from "../state/format";
import { Card, Disclosure, Field, Icon, IconButton, Select, toast } from "../ui";
import { EventList } from "./EventList";
import type { Device, MemoryEvent, Model } from "./types";
import { capital, componentName, deviceName, fileName, inMemory, overruled, placesOf, POLICIES, policyName, why } from "./words";
import css from "./memory.module.css";

function told(e: unknown): string {
  return e instanceof ApiError ? [e.message, e.details].filter(Boolean).join(": ") : String(e);
}

interface FileProps {
  models: Model[];
  devices: Device[];
  decisions: MemoryEvent[];
  refresh(): Promise<void>;
}

export function ModelFile({ models, devices, decisions, refresh }: FileProps) {
  const first = models[0];
  if (!first) return null;
  const ids = new Set(models.map((m) => m.weights_id));
  const own = decisions.filter((e) => e.weights_id && ids.has(e.weights_id));
  return (
    <Card className={css.file}>
      <div className={css.fileHead}>
        <h3 className={css.fileName}>{fileName(first)}</h3>
        <span className={css.soft}>{bytes(models.reduce((sum, m) => sum + inMemory(m), 0))} in memory</span>
      </div>
      {models.map((m) => (
        <ModelRow key={m.weights_id} model={m} devices={devices} decisions={own} refresh={refresh} />
      ))}
      {own.length > 0 && (
        <div className={css.history}>
          <Disclosure title="Its last decisions" aside={`${own.length}`}>
            <EventList events={own} models={models} short />
          </Disclosure>
        </div>
      )}
    </Card>
  );
}

function ModelRow({ model, devices, decisions, refresh }: { model: Model; devices: Device[]; decisions: MemoryEvent[]; refresh(): Promise<void> }) {
  const [busy, setBusy] = useState(false);
  const id = `/api/memory/models/${encodeURIComponent(model.weights_id)}`;
  const name = `${componentName(model)} of ${fileName(model)}`;

  const setPolicy = async (policy: string) => {
    setBusy(true);
    try {
      const now = await sendJson<Model>("PATCH", id, { policy });
      if (now.effective_policy === policy) toast(`${componentName(model)}: ${policyName(policy).toLowerCase()}.`, "good");
      else toast(overruled(now) ?? `It stays “${policyName(now.effective_policy)}”: another wish is stronger.`, "warn", { duration: 10000 });
    } catch (e) {
      toast(told(e), "bad");
    } finally {
      setBusy(false);
      void refresh();
    }
  };
  const drop = async (force = false) => {
    setBusy(true);
    try {
      const done = await sendJson<{ status?: string }>("DELETE", force ? `${id}?force=1` : id);
      toast(done?.status === "deferred" ? `${name} goes when the picture that uses it is done.` : `Ejected ${name}: ${bytes(inMemory(model))} freed.`, "good");
    } catch (e) {
      if (e instanceof ApiError && e.type === "model_pinned") {
        toast("This model is pinned.", "warn", { action: { label: "Eject it anyway", onSelect: () => void drop(true) } });
      } else {
        toast(told(e), "bad");
      }
    } finally {
      setBusy(false);
      void refresh();
    }
  };

  const places = placesOf(model);
  const order = devices.map((d) => d.device);
  const total = Math.max(inMemory(model), 1);
  const known = POLICIES.some((p) => p.value === model.effective_policy);
  const options = known ? POLICIES : [...POLICIES, { value: model.effective_policy, label: policyName(model.effective_policy) }];
  const note = overruled(model);
  return (
    <article className={css.model} aria-label={name}>
      <div className={css.modelMain}>
        <div className={css.modelHead}>
          <strong>{componentName(model)}</strong>
          <span className={css.soft}>{bytes(model.bytes_total)}</span>
          {model.leases.length > 0 && (
            <span className={css.badge}>
              <Icon name="play" size={14} /> in use
            </span>
          )}
        </div>
        <div className={css.bar} aria-hidden="true">
          {places.map((p) => (
            <span
              key={p.device}
              className={css[`place${Math.min(3, Math.max(0, order.indexOf(p.device)))}`]}
              style={{ width: `${(p.bytes / total) * 100}%` }}
            />
          ))}
        </div>
        <ul className={css.places}>
          {places.map((p) => (
            <li key={p.device}>
              <span className={`${css.swatch} ${css[`place${Math.min(3, Math.max(0, order.indexOf(p.device)))}`]}`} aria-hidden="true" />
              {capital(deviceName(p.device))}
              {places.length > 1 && <>: {bytes(p.bytes)}</>}
            </li>
          ))}
          <li className={css.soft}>
            <Icon name="clock" size={14} /> {model.last_used ? `used ${ago(model.last_used, Date.now())}` : "not used yet"}
          </li>
        </ul>
        <p className={css.why}>{why(model, decisions)}</p>
        {note && (
          <p className={css.overruled}>
            <Icon name="info" size={16} /> <span>{note}</span>
          </p>
        )}
      </div>
      <div className={css.modelSide}>
        <Field
          label={
            <>
              How long it stays<span className="hidden-visually">: {name}</span>
            </>
          }
        >
          <Select options={options} value={model.effective_policy} disabled={busy} onChange={(v) => void setPolicy(v)} />
        </Field>
        <IconButton label={`Eject ${name} from memory`} icon="eject" variant="danger" disabled={busy} onClick={() => void drop()} />
      </div>
    </article>
  );
}
