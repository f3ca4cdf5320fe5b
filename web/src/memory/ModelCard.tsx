// One model: its size, place, how long it stays and why it is where it is; its parts and what was done with it are folded.
import { useState } from "react";
import { ApiError, sendJson } from "../api/client";
import { ago, bytes } from "../state/format";
import { Card, Disclosure, Field, Icon, IconButton, Select, toast } from "../ui";
import { EventList } from "./EventList";
import type { Device, MemoryEvent, Model } from "./types";
import { capital, componentName, deviceName, fileName, inMemory, overruled, placesOf, POLICIES, policyName, why } from "./words";
import css from "./memory.module.css";

function errorText(e: unknown): string {
  return e instanceof ApiError ? [e.message, e.details].filter(Boolean).join(": ") : String(e);
}

interface FileProps {
  models: Model[];
  devices: Device[];
  decisions: MemoryEvent[];
  refresh(): Promise<void>;
}

/** Several parts have one policy, or this. */
const MIXED = "";

/** One row for one model: all its parts together, and each of them behind a fold. */
export function ModelFile({ models, devices, decisions, refresh }: FileProps) {
  const [busy, setBusy] = useState(false);
  const first = models[0];
  if (!first) return null;
  const name = fileName(first);
  const ids = new Set(models.map((m) => m.weights_id));
  const own = decisions.filter((e) => e.weights_id && ids.has(e.weights_id));
  const policies = new Set(models.map((m) => m.effective_policy));
  const policy = policies.size === 1 ? first.effective_policy : MIXED;
  const reasons = new Set(models.map((m) => why(m, own)));
  const note = models.map(overruled).find(Boolean);
  const all = async (work: () => Promise<void>) => {
    setBusy(true);
    try {
      await work();
    } catch (e) {
      toast(errorText(e), "bad");
    } finally {
      setBusy(false);
      void refresh();
    }
  };
  const setPolicy = (wanted: string) =>
    all(async () => {
      const now: Model[] = [];
      for (const m of models) now.push(await sendJson<Model>("PATCH", addressOf(m), { policy: wanted }));
      const lost = now.find((m) => m.effective_policy !== wanted);
      if (lost) toast(overruled(lost) ?? `It stays “${policyName(lost.effective_policy)}”: another setting takes precedence.`, "warn", { duration: 10000 });
      else toast(`${name}: ${policyName(wanted).toLowerCase()}.`, "good");
    });
  const eject = (force = false) =>
    all(async () => {
      const size = inMemoryOf(models);
      let deferred = false;
      try {
        for (const m of models) deferred = (await ejectOne(m, force)) === "deferred" || deferred;
      } catch (e) {
        if (!isPinned(e)) throw e;
        toast("This model is pinned.", "warn", { action: { label: "Eject it anyway", onSelect: () => void eject(true) } });
        return;
      }
      toast(deferred ? `${name} leaves memory when the job that uses it is done.` : `Ejected ${name}: ${bytes(size)} freed.`, "good");
    });
  return (
    <Card className={css.file}>
      <article className={css.model} aria-label={name}>
        <div className={css.modelMain}>
          <div className={css.modelHead}>
            <h3 className={css.fileName}>{name}</h3>
            <span className={css.soft}>{bytes(inMemoryOf(models))}</span>
            {models.some((m) => m.leases.length > 0) && <InUse />}
          </div>
          <Places models={models} devices={devices} />
          <p className={css.why}>{reasons.size === 1 ? [...reasons][0] : `${componentName(first)}: ${why(first, own)}`}</p>
          {note && <Note text={note} />}
        </div>
        <Side name={name} policy={policy} busy={busy} mixed={policies.size > 1} onPolicy={(p) => void setPolicy(p)} onEject={() => void eject()} />
      </article>
      <div className={css.folds}>
        {models.length > 1 && (
          <Disclosure title="Parts" aside={`${models.length}`}>
            {models.map((m) => (
              <ModelRow key={m.weights_id} model={m} devices={devices} decisions={own} refresh={refresh} />
            ))}
          </Disclosure>
        )}
        {own.length > 0 && (
          <Disclosure title="Recent activity" aside={`${own.length}`}>
            <EventList events={own} models={models} short />
          </Disclosure>
        )}
      </div>
    </Card>
  );
}

const addressOf = (model: Model) => `/api/memory/models/${encodeURIComponent(model.weights_id)}`;
const inMemoryOf = (models: Model[]) => models.reduce((sum, m) => sum + inMemory(m), 0);
const isPinned = (e: unknown) => e instanceof ApiError && e.type === "model_pinned";

/** Whether it went at once, or goes when what uses it is done. */
async function ejectOne(model: Model, force: boolean): Promise<string | undefined> {
  const done = await sendJson<{ status?: string }>("DELETE", force ? `${addressOf(model)}?force=1` : addressOf(model));
  return done?.status;
}

function InUse() {
  return (
    <span className={css.badge}>
      <Icon name="play" size={14} /> in use
    </span>
  );
}

function Note({ text }: { text: string }) {
  return (
    <p className={css.overruled}>
      <Icon name="info" size={16} /> <span>{text}</span>
    </p>
  );
}

/** Where the bytes of some models are, as a bar and in words. */
function Places({ models, devices }: { models: Model[]; devices: Device[] }) {
  const order = devices.map((d) => d.device);
  const look = (device: string) => css[`place${Math.min(3, Math.max(0, order.indexOf(device)))}`];
  const sums = new Map<string, number>();
  for (const m of models) for (const p of placesOf(m)) sums.set(p.device, (sums.get(p.device) ?? 0) + p.bytes);
  const places = [...sums].map(([device, n]) => ({ device, bytes: n }));
  const total = Math.max(inMemoryOf(models), 1);
  const used = Math.max(...models.map((m) => m.last_used ?? 0));
  return (
    <>
      <div className={css.bar} aria-hidden="true">
        {places.map((p) => (
          <span key={p.device} className={look(p.device)} style={{ width: `${(p.bytes / total) * 100}%` }} />
        ))}
      </div>
      <ul className={css.places}>
        {places.map((p) => (
          <li key={p.device}>
            <span className={`${css.swatch} ${look(p.device)}`} aria-hidden="true" />
            {capital(deviceName(p.device))}
            {places.length > 1 && <>: {bytes(p.bytes)}</>}
          </li>
        ))}
        <li className={css.soft}>
          <Icon name="clock" size={14} /> {used > 0 ? `used ${ago(used, Date.now())}` : "not used yet"}
        </li>
      </ul>
    </>
  );
}

interface SideProps {
  name: string;
  policy: string;
  busy: boolean;
  mixed?: boolean;
  onPolicy(policy: string): void;
  onEject(): void;
}

/** How long it stays, and the button that takes it out of memory. */
function Side({ name, policy, busy, mixed, onPolicy, onEject }: SideProps) {
  const known = POLICIES.some((p) => p.value === policy);
  const options = known ? POLICIES : [...POLICIES, { value: policy, label: mixed ? "Differs by part" : policyName(policy) }];
  return (
    <div className={css.modelSide}>
      <Field
        label={
          <>
            How long it stays<span className="hidden-visually">: {name}</span>
          </>
        }
      >
        <Select options={options} value={policy} disabled={busy} onChange={(v) => v !== MIXED && onPolicy(v)} />
      </Field>
      <IconButton label={`Eject ${name} from memory`} icon="eject" variant="danger" disabled={busy} onClick={onEject} />
    </div>
  );
}

/** One part of a model: its size, place, policy and why it is there. */
function ModelRow({ model, devices, decisions, refresh }: { model: Model; devices: Device[]; decisions: MemoryEvent[]; refresh(): Promise<void> }) {
  const [busy, setBusy] = useState(false);
  const name = `${componentName(model)} of ${fileName(model)}`;
  const setPolicy = async (policy: string) => {
    setBusy(true);
    try {
      const now = await sendJson<Model>("PATCH", addressOf(model), { policy });
      if (now.effective_policy === policy) toast(`${componentName(model)}: ${policyName(policy).toLowerCase()}.`, "good");
      else toast(overruled(now) ?? `It stays “${policyName(now.effective_policy)}”: another setting takes precedence.`, "warn", { duration: 10000 });
    } catch (e) {
      toast(errorText(e), "bad");
    } finally {
      setBusy(false);
      void refresh();
    }
  };
  const eject = async (force = false) => {
    setBusy(true);
    try {
      const done = await ejectOne(model, force);
      toast(done === "deferred" ? `${name} leaves memory when the job that uses it is done.` : `Ejected ${name}: ${bytes(inMemory(model))} freed.`, "good");
    } catch (e) {
      if (isPinned(e)) toast("This model is pinned.", "warn", { action: { label: "Eject it anyway", onSelect: () => void eject(true) } });
      else toast(errorText(e), "bad");
    } finally {
      setBusy(false);
      void refresh();
    }
  };
  const note = overruled(model);
  return (
    <article className={css.model} aria-label={name}>
      <div className={css.modelMain}>
        <div className={css.modelHead}>
          <strong>{componentName(model)}</strong>
          <span className={css.soft}>{bytes(model.bytes_total)}</span>
          {model.leases.length > 0 && <InUse />}
        </div>
        <Places models={[model]} devices={devices} />
        <p className={css.why}>{why(model, decisions)}</p>
        {note && <Note text={note} />}
      </div>
      <Side name={name} policy={model.effective_policy} busy={busy} onPolicy={(p) => void setPolicy(p)} onEject={() => void eject()} />
    </article>
  );
}
