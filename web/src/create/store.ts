// The state of the Create page: the form, what is looked at, and queueing. Kept outside the components, so that leaving the
// page and coming back changes nothing.
import { create } from "zustand";
import { onBack, queuePrompt } from "../api/client";
import { workflowId } from "../api/identity";
import type { Job, UiWorkflow } from "../api/types";
import { uiFromApi } from "../graph/fromApi";
import { useInfo } from "../state/info";
import { useLive } from "../state/live";
import { remember, remembered } from "../state/settings";
import { buildPrompt } from "./build";
import { detect } from "./detected";
import { type Problem, problemOf } from "./errors";
import { kitOf, NeedsFile } from "./kit";
import { cleaned, COUNT_MAX, type CreateValues, rollSeed, seedsFor, withModel } from "./values";

const KEY = "create.values";
/** So many opened jobs stay among the recent pictures. */
const OPENED = 12;

interface CreateState {
  values: CreateValues;
  /** The group on the stage, by its id or that of one of its jobs; null follows what runs, or else shows the newest. */
  shown: string | null;
  /** Jobs of other origin that the user opened here. */
  opened: Job[];
  /** Whether anything was asked for since the page was opened. */
  asked: boolean;
  problem: Problem | null;
  /** Fields that a failed job was about. */
  marks: Problem["fields"];
  set(patch: Partial<CreateValues>): void;
  update(change: (v: CreateValues) => CreateValues): void;
  show(group: string | null): void;
  /** Shows a job that was opened elsewhere on the page. */
  bring(job: Job): void;
  /** Jobs that were deleted are shown no more. */
  dropped(jobs: readonly string[]): void;
  report(problem: Problem | null): void;
  mark(fields: Problem["fields"]): void;
  /** Queues what the form says; draws a new seed first unless it is locked. */
  submit(): Promise<boolean>;
  /** Queues other values without touching the form. */
  queue(values: CreateValues): Promise<boolean>;
}

let saving: ReturnType<typeof setTimeout> | undefined;
function save(values: CreateValues) {
  clearTimeout(saving);
  saving = setTimeout(() => remember(KEY, values), 200);
}

// The last keystrokes before a reload count too.
if (typeof addEventListener === "function") addEventListener("pagehide", () => remember(KEY, useCreate.getState().values));

export const useCreate = create<CreateState>()((set, get) => ({
  values: cleaned(remembered(KEY, null)),
  shown: null,
  opened: [],
  asked: false,
  problem: null,
  marks: {},
  set(patch) {
    get().update((v) => ({ ...v, ...patch }));
  },
  update(change) {
    const values = change(get().values);
    if (values === get().values) return;
    // A changed field is no longer the one that was refused.
    set({ values, problem: null, marks: {} });
    save(values);
  },
  show(shown) {
    set({ shown });
  },
  bring(job) {
    set((s) => ({ opened: [job, ...s.opened.filter((o) => o.id !== job.id)].slice(0, OPENED), shown: job.id }));
  },
  dropped(jobs) {
    set((s) => ({ opened: s.opened.filter((o) => !jobs.includes(o.id)) }));
  },
  report(problem) {
    set({ problem });
  },
  mark(marks) {
    set({ marks });
  },
  submit() {
    const { values } = get();
    if (!values.seedLocked) get().set({ seed: rollSeed() });
    return get().queue(get().values);
  },
  async queue(values) {
    set({ problem: null, marks: {}, shown: null, asked: true });
    try {
      await send(values);
      return true;
    } catch (e) {
      set({ problem: e instanceof NeedsFile ? e.problem : problemOf(e) });
      return false;
    } finally {
      void useLive
        .getState()
        .refresh()
        .catch(() => undefined);
    }
  },
}));

// What was said while the server was away is over when it is back.
onBack(() => {
  if (useCreate.getState().problem?.away) useCreate.setState({ problem: null });
});

/** One job a picture: each is shown as soon as it is done and can be made again from its own seed. All of them carry one
 *  workflow id, by which they are found together. */
async function send(values: CreateValues): Promise<void> {
  const info = await useInfo.getState().load();
  const kit = values.image && !values.redraw ? undefined : await kitOf(values.model);
  const id = workflowId();
  for (const seed of seedsFor(values.seed, Math.min(values.count, COUNT_MAX))) {
    const prompt = buildPrompt({ ...values, seed }, kit);
    const workflow: UiWorkflow = { ...uiFromApi(prompt, info), id };
    // Previews are what makes a picture grow; a server may have them switched off for everyone else.
    await queuePrompt(prompt, { workflow, extra: { preview_method: "auto", fresco_create: { ...values, seed, count: 1 } } });
  }
}

/** Sees to it that the form names a model that is there. */
export function adoptModel(models: string[]): void {
  const { values } = useCreate.getState();
  if (models.length === 0 || models.includes(values.model)) {
    if (values.model) void detect(values.model);
    return;
  }
  // A model that was taken away is replaced by the most ordinary one; a first visit starts with the one that came along.
  const first = models.find((m) => /starter/i.test(m)) ?? models[0];
  if (first) chooseModel(first);
}

/** Takes another model once the server has said what it is, so that sizes and steps suit it. */
export function chooseModel(model: string): void {
  void detect(model).then(() => useCreate.getState().update((v) => withModel(v, model)));
}
