// An error as a sentence with its reason and a way on; only the trace is folded.
import { Button, Disclosure, Icon } from "../ui";
import { go } from "../state/handoff";
import type { Problem } from "./errors";
import css from "./ProblemNote.module.css";

export function ProblemNote({ problem, onClose, onRetry }: { problem: Problem; onClose?(): void; onRetry?(): void }) {
  return (
    <div className={css.note} role="alert">
      <div className={css.line}>
        <Icon name="warning" className={css.icon} />
        <div className={css.words}>
          <p>{problem.text}</p>
          {problem.reason && <p className={css.reason}>{problem.reason}</p>}
        </div>
      </div>
      <div className={css.actions}>
        {problem.help === "memory" && (
          <Button size="s" icon="memory" onClick={() => go("#/memory")}>
            Open Memory
          </Button>
        )}
        {onRetry && (
          <Button size="s" icon="refresh" onClick={onRetry}>
            Try again
          </Button>
        )}
        {onClose && (
          <Button size="s" variant="quiet" onClick={onClose}>
            Dismiss
          </Button>
        )}
      </div>
      {problem.details && (
        <Disclosure title="Details">
          <pre className={css.details} tabIndex={0} aria-label="Details of the error">
            {problem.details}
          </pre>
        </Disclosure>
      )}
    </div>
  );
}
