// Names what this machine lacks for the workflow, and offers what would do instead.
import type { Inspection } from "../api/types";
import { Button, Combo, Field as Labelled, Icon, Select } from "../ui";
import { type MissingGroup, plausible, substitute } from "./apply";
import type { Values } from "./fields";
import css from "./MissingPanel.module.css";

export interface MissingPanelProps {
  nodes: Inspection["missing"]["nodes"];
  models: MissingGroup[];
  onSubstitute(changes: Values): void;
  onGraph(): void;
  onLookAgain(): void;
}

export function MissingPanel({ nodes, models, onSubstitute, onGraph, onLookAgain }: MissingPanelProps) {
  if (!nodes.length && !models.length) return null;
  return (
    <section className={css.panel} aria-label="What is missing">
      <h2 className={css.title}>
        <Icon name="warning" /> {nodes.length ? "This workflow cannot run here yet" : "Some models are not on this machine"}
      </h2>
      {nodes.length > 0 && <MissingNodes nodes={nodes} onGraph={onGraph} />}
      {models.map((group) => (
        <MissingModel key={group.wanted + group.keys.join()} group={group} onSubstitute={onSubstitute} />
      ))}
      {models.length > 0 && (
        <div className={css.foot}>
          <p>Or put the missing files into their folders and look again.</p>
          <Button size="s" icon="refresh" onClick={onLookAgain}>
            Look again
          </Button>
        </div>
      )}
    </section>
  );
}

function MissingModel({ group, onSubstitute }: { group: MissingGroup; onSubstitute(changes: Values): void }) {
  const where = group.titles.slice(0, 3).join(", ") + (group.titles.length > 3 ? ` and ${group.titles.length - 3} more` : "");
  const place = group.folder ? `It belongs in the folder models/${group.folder}.` : "";
  const choose = (choice: string) => choice && onSubstitute(substitute(group, choice));
  const link = group.url && (
    <a href={group.url} target="_blank" rel="noopener noreferrer">
      Download it
    </a>
  );
  if (!group.choices.length) {
    return (
      <p className={css.item}>
        <span className={css.name}>{group.wanted}</span> is needed by {where}. There is no other file of that kind here. {place} {link}
      </p>
    );
  }
  const options = [
    { value: "", label: "Choose one of yours…" },
    ...group.choices.map((choice, index) => ({ value: choice, label: index === 0 && plausible(group.wanted, choice) ? `${choice} (closest name)` : choice })),
  ];
  return (
    <Labelled
      label={
        <>
          Instead of <span className={css.name}>{group.wanted}</span>
        </>
      }
      hint={
        <>
          For {where}
          {group.keys.length > group.titles.length ? ` (${group.keys.length} places)` : ""}. {place} {link}
        </>
      }
    >
      {group.choices.length > 24 ? <Combo options={options} value="" onChange={choose} /> : <Select options={options} value="" onChange={choose} />}
    </Labelled>
  );
}

function MissingNodes({ nodes, onGraph }: { nodes: MissingPanelProps["nodes"]; onGraph(): void }) {
  const byClass = new Map<string, string[]>();
  for (const node of nodes) byClass.set(node.class_type, [...(byClass.get(node.class_type) ?? []), node.title || node.id]);
  const entries = [...byClass];
  return (
    <>
      <p>Fresco has no node of {entries.length === 1 ? "this kind" : "these kinds"}; often such nodes come from an add-on:</p>
      <ul className={css.list}>
        {entries.slice(0, 20).map(([name, titles]) => (
          <li key={name}>
            <code>{name || "a node without a class"}</code>
            {titles.some((title) => title !== name) && ` (${[...new Set(titles)].slice(0, 4).join(", ")})`}
            {titles.length > 1 && `, ${titles.length} times`}
          </li>
        ))}
      </ul>
      {entries.length > 20 && <p>And {entries.length - 20} more.</p>}
      <p>
        Open it in Graph to take {entries.length === 1 ? "it" : "them"} out or put other nodes in {entries.length === 1 ? "its" : "their"} place, or ask for a
        version of the workflow without {entries.length === 1 ? "it" : "them"}.
      </p>
      <div>
        <Button size="s" icon="graph" onClick={onGraph}>
          Open in Graph
        </Button>
      </div>
    </>
  );
}
