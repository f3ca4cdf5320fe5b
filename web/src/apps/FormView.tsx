// The form of an app: the chosen fields, and the others folded under the titles of their nodes.
import { useState } from "react";
import type { ObjectInfo } from "../api/types";
import { Disclosure, TextInput } from "../ui";
import { FieldControl } from "./FieldControl";
import { byNode, type Field, type NodeFields, type Values } from "./fields";
import type { FormDef, SeedMode, ShownField } from "./form";
import type { Problems } from "./problems";
import css from "./FormView.module.css";

export interface FormViewProps {
  shown: ShownField[];
  rest: Field[];
  form: FormDef;
  values: Values;
  info: ObjectInfo;
  problems: Problems;
  onChange(changes: Values): void;
  onSeed(key: string, mode: SeedMode): void;
}

/** So many nodes are listed at once; the others are found by typing. */
const nodesShown = 40;

export function FormView({ shown, rest, form, values, info, problems, onChange, onSeed }: FormViewProps) {
  const control = (field: Field, explain = true) => (
    <FieldControl
      explain={explain}
      key={field.key}
      field={field}
      values={values}
      onChange={onChange}
      error={problems.fields[field.key]}
      seed={form.seeds[field.key] ?? "random"}
      onSeed={(mode) => onSeed(field.key, mode)}
    />
  );
  const hidden = rest.filter((field) => problems.fields[field.key]);
  return (
    <div className={css.form}>
      {shown.map((field) => control(field, false))}
      {!shown.length && <p className={css.none}>No field is shown. Choose some with "Edit form".</p>}
      {!form.more && hidden.map((field) => control(field))}
      {form.more && rest.length > 0 && <More nodes={byNode(rest, info)} problems={problems} control={control} />}
    </div>
  );
}

function More({ nodes, problems, control }: { nodes: NodeFields[]; problems: Problems; control(field: Field): React.ReactNode }) {
  const [find, setFind] = useState("");
  const [open, setOpen] = useState(false);
  const wrong = (node: NodeFields) => node.fields.some((field) => problems.fields[field.key]);
  const anyWrong = nodes.some(wrong);
  const wanted = find.trim().toLowerCase();
  const found = wanted
    ? nodes.filter((node) => `${node.title} ${node.classType} ${node.fields.map((f) => f.label).join(" ")}`.toLowerCase().includes(wanted))
    : nodes;
  return (
    <Disclosure
      key={anyWrong ? "wrong" : "fine"}
      title="More"
      open={anyWrong || open}
      onToggle={setOpen}
      aside={anyWrong ? "Something needs to be changed" : `${nodes.length} ${nodes.length === 1 ? "node" : "nodes"}`}
    >
      {(open || anyWrong) && (
        <div className={css.more}>
          {nodes.length > 12 && <TextInput type="search" aria-label="Find a node" placeholder="Find a node" value={find} onChange={setFind} />}
          {found.slice(0, nodesShown).map((node) => (
            <NodePart key={node.node} node={node} wrong={wrong(node)} control={control} />
          ))}
          {found.length > nodesShown && <p className={css.none}>{found.length - nodesShown} more. Type a part of their title to find them.</p>}
          {!found.length && <p className={css.none}>No node matches.</p>}
        </div>
      )}
    </Disclosure>
  );
}

/** A node's fields are made when it is first opened: with hundreds of nodes that keeps the page quick. */
function NodePart({ node, wrong, control }: { node: NodeFields; wrong: boolean; control(field: Field): React.ReactNode }) {
  const [open, setOpen] = useState(false);
  return (
    <Disclosure key={wrong ? "wrong" : "fine"} title={node.title} open={wrong || open} onToggle={setOpen}>
      {(open || wrong) && <div className={css.form}>{node.fields.map((field) => control(field))}</div>}
    </Disclosure>
  );
}
