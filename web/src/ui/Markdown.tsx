// The text of a note as its writer meant it: headings, lists, tables, links that open beside this page.
import { Fragment, type ReactNode, useMemo } from "react";
import { type Block, type Inline, parseMarkdown } from "./markdown";
import css from "./Markdown.module.css";

function inline(list: Inline[]): ReactNode {
  return list.map((part, i) => {
    switch (part.kind) {
      case "text":
        return <Fragment key={i}>{part.text}</Fragment>;
      case "code":
        return <code key={i}>{part.text}</code>;
      case "break":
        return <br key={i} />;
      case "strong":
        return <strong key={i}>{inline(part.inside)}</strong>;
      case "em":
        return <em key={i}>{inline(part.inside)}</em>;
      case "del":
        return <del key={i}>{inline(part.inside)}</del>;
      case "link":
        return (
          <a key={i} href={part.href} target="_blank" rel="noopener noreferrer">
            {inline(part.inside)}
          </a>
        );
    }
  });
}

function block(b: Block, key: number): ReactNode {
  switch (b.kind) {
    // Not headings of the page: a note is a small part of it.
    case "heading":
      return (
        <p key={key} role="heading" aria-level={Math.min(6, b.level + 2)} className={css[`h${Math.min(b.level, 4)}`]}>
          {inline(b.inside)}
        </p>
      );
    case "paragraph":
      return <p key={key}>{inline(b.inside)}</p>;
    case "code":
      return (
        <pre key={key}>
          <code>{b.text}</code>
        </pre>
      );
    case "rule":
      return <hr key={key} />;
    case "quote":
      return <blockquote key={key}>{b.blocks.map(block)}</blockquote>;
    case "list": {
      const items = b.items.map((item, i) => (
        <li key={i}>
          {item.map((inner, k) => (inner.kind === "paragraph" && item.length < 3 ? <Fragment key={k}>{inline(inner.inside)}</Fragment> : block(inner, k)))}
        </li>
      ));
      return b.start === null ? (
        <ul key={key}>{items}</ul>
      ) : (
        <ol key={key} start={b.start}>
          {items}
        </ol>
      );
    }
    case "table":
      return (
        <table key={key}>
          <thead>
            <tr>
              {b.head.map((cell, i) => (
                <th key={i}>{inline(cell)}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {b.rows.map((row, r) => (
              <tr key={r}>
                {row.map((cell, i) => (
                  <td key={i}>{inline(cell)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      );
  }
}

export function Markdown({ text, className }: { text: string; className?: string }) {
  const parsed = useMemo(() => parseMarkdown(text), [text]);
  return <div className={[css.text, className].filter(Boolean).join(" ")}>{parsed.map(block)}</div>;
}
