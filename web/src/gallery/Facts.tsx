// The settings of a result as a tidy list with its nodes folded away, and the texts it gave.
import type { JobDetails } from "../api/types";
import { Disclosure } from "../ui";
import { CopyButton } from "./CopyButton";
import { duration, nodeLines, type Setting, settingsOf, type Summary } from "./settings";
import { tookMs } from "./Tile";
import type { Size } from "./zoom";
import css from "./Facts.module.css";

/** Long texts get their own line, short facts two columns. */
const LONG = 40;

function when(details: JobDetails): string {
  const time = details.execution_end_time ?? details.create_time;
  return time ? new Date(time).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" }) : "";
}

export function Facts({ details, summary, size }: { details: JobDetails; summary: Summary; size: Size | null }) {
  const own = settingsOf(details.workflow.prompt);
  const rows: Setting[] = [...own];
  const add = (name: string, value: string) => {
    if (value && !rows.some((r) => r.name === name)) rows.push({ name, value });
  };
  if (size && size.width > 0) {
    const real = `${size.width} × ${size.height}`;
    const asked = rows.find((r) => r.name === "Size");
    // What came out counts; what was asked for stays in view where it differs.
    if (asked && asked.value !== real) asked.name = "Requested size";
    add("Size", real);
  }
  add("Time taken", duration(tookMs(details)));
  add("When", when(details));
  add("Workflow", summary.workflow);
  const nodes = nodeLines(details.workflow.prompt);
  return (
    <>
      <dl className={css.list}>
        {rows.map((row) => (
          <div key={row.name} className={row.value.length > LONG || row.name === "Prompt" || row.name === "Avoid" ? `${css.row} ${css.long}` : css.row}>
            <dt>{row.name}</dt>
            <dd>
              <span>{row.value}</span>
              <CopyButton text={row.value} what={row.name.toLowerCase()} />
            </dd>
          </div>
        ))}
      </dl>
      <Disclosure title="All nodes" aside={`${nodes.length}`}>
        <ul className={css.nodes}>
          {nodes.map((node) => (
            <li key={node.id}>
              <div className={css.node}>
                {node.title}{" "}
                <span>
                  {node.class_type !== node.title ? `${node.class_type}, ` : ""}node {node.id}
                </span>
              </div>
              <dl>
                {node.inputs.map((input) => (
                  <div key={input.name} className={input.link ? `${css.input} ${css.link}` : css.input}>
                    <dt>{input.name}</dt>
                    <dd>{input.value}</dd>
                  </div>
                ))}
              </dl>
            </li>
          ))}
        </ul>
      </Disclosure>
    </>
  );
}

export function Texts({ summary }: { summary: Summary }) {
  return summary.outputs.texts.map(({ text, node }, i) => (
    <section key={`${node}-${i}`} className={css.text} aria-label="Text">
      <div className={css.textHead}>
        <h2>Text</h2>
        <CopyButton text={text} what="text" />
      </div>
      <pre>{text}</pre>
    </section>
  ));
}
