// Why a job failed, in plain words first; the technical part folded.
import type { JobDetails } from "../api/types";
import { Disclosure, Icon } from "../ui";
import { CopyButton } from "./CopyButton";
import { titleOf } from "./settings";
import css from "./Detail.module.css";

export function Failure({ details }: { details: JobDetails }) {
  const error = details.execution_error ?? {};
  const node = error.node_id ? details.workflow.prompt[error.node_id] : undefined;
  const where = node ? titleOf(node) : error.node_type;
  const message = error.exception_message?.trim() || "The server gave no reason.";
  const trace = (error.traceback ?? []).join("").trim();
  return (
    <section className={css.failure} aria-label="What went wrong">
      <div className={css.failHead}>
        <Icon name="warning" size={24} />
        <h2>This job failed</h2>
      </div>
      {where && (
        <p>
          It stopped at “{where}”{error.node_id ? `, node ${error.node_id}` : ""}.
        </p>
      )}
      <div className={css.message}>
        <span>{message}</span>
        <CopyButton text={[message, trace].filter(Boolean).join("\n\n")} what="the error" />
      </div>
      {(trace || error.exception_type) && (
        <Disclosure title="Technical details">
          <pre className={css.trace}>{[error.exception_type, trace].filter(Boolean).join("\n\n")}</pre>
        </Disclosure>
      )}
    </section>
  );
}
