// Decisions about memory, newest first, each as a sentence with its time.
import type { MemoryEvent, Model } from "./types";
import { componentName, eventSentence, fileName } from "./words";
import css from "./memory.module.css";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function EventList({ events, models, short }: { events: MemoryEvent[]; models: Model[]; short?: boolean }) {
  const known = new Map(models.map((m) => [m.weights_id, m]));
  const rows = events
    .map((e, i) => ({ e, key: e.seq ?? `x${i}`, text: eventSentence(e) }))
    .filter((r) => r.text !== null)
    .reverse();
  return (
    <ol className={css.events} tabIndex={0} aria-label="Recent activity, newest first">
      {rows.map(({ e, key, text }) => {
        const model = e.weights_id ? known.get(e.weights_id) : undefined;
        const who = model ? (short ? componentName(model) : `${fileName(model)}, ${componentName(model).toLowerCase()}`) : e.weights_id?.split(":")[0];
        return (
          <li key={key}>
            <time dateTime={new Date(e.time).toISOString()}>{clock.format(e.time)}</time>
            <span>
              {who && <b>{who}: </b>}
              {text}
            </span>
          </li>
        );
      })}
    </ol>
  );
}
