import { describe, expect, it } from "vitest";
import { type Block, type Inline, parseInline, parseMarkdown, safeHref } from "./markdown";

/** The tree as short text. */
const say = (list: Inline[]): string =>
  list
    .map((p) =>
      p.kind === "text"
        ? p.text
        : p.kind === "break"
          ? "/"
          : p.kind === "code"
            ? `code(${p.text})`
            : p.kind === "link"
              ? `link(${p.href}|${say(p.inside)})`
              : `${p.kind}(${say(p.inside)})`,
    )
    .join("");
const tell = (b: Block): string => {
  switch (b.kind) {
    case "heading":
      return `h${b.level}(${say(b.inside)})`;
    case "paragraph":
      return `p(${say(b.inside)})`;
    case "code":
      return `pre(${b.text})`;
    case "rule":
      return "hr";
    case "quote":
      return `quote(${b.blocks.map(tell).join(" ")})`;
    case "list":
      return `${b.start === null ? "ul" : `ol${b.start}`}(${b.items.map((i) => i.map(tell).join(" ")).join("; ")})`;
    case "table":
      return `table(${b.head.map(say).join("|")}: ${b.rows.map((r) => r.map(say).join("|")).join("; ")})`;
  }
};
const read = (text: string) => parseMarkdown(text).map(tell).join(" ");

describe("parseMarkdown", () => {
  it("reads what notes are written in", () => {
    expect(read("# Models\n\nGet **both** *files*:\n\n- [model](https://a.b/c_(1).safetensors)\n- `x.vae`\n  1. one\n  2. two\n\n---\n> so\n> it is")).toBe(
      "h1(Models) p(Get strong(both) em(files):) ul(p(link(https://a.b/c_(1).safetensors|model)); p(code(x.vae)) ol1(p(one); p(two))) hr quote(p(so/it is))",
    );
    expect(read("```sh\nls *.ckpt\n```")).toBe("pre(ls *.ckpt)");
    expect(read("|a|b|\n|---|:-:|\n|1|**2**|")).toBe("table(a|b: 1|strong(2))");
    expect(read("one\ntwo")).toBe("p(one/two)");
  });
  it("leaves file names alone", () => {
    expect(read("put sd_xl_base_1.0.safetensors in models/checkpoints")).toBe("p(put sd_xl_base_1.0.safetensors in models/checkpoints)");
    expect(read("2 * 3 * 4")).toBe("p(2 * 3 * 4)");
  });
  it("makes links of bare addresses", () => {
    expect(say(parseInline("see https://huggingface.co/x/y, or <https://a.b>."))).toBe(
      "see link(https://huggingface.co/x/y|https://huggingface.co/x/y), or link(https://a.b|https://a.b).",
    );
  });
  it("runs nothing and loads nothing", () => {
    expect(
      say(parseInline("<script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1)) [y](data:text/html,z) ![p](https://a.b/p.png)")),
    ).toBe("<script>alert(1)</script> <img src=x onerror=alert(1)> x y link(https://a.b/p.png|p)");
    expect(["javascript:alert(1)", " JaVaScRiPt:1", "data:text/html,x", "//a.b", "/etc", "https://a b", "vbscript:x", "file:///etc"].map(safeHref)).toEqual(
      Array(8).fill(null),
    );
    expect(safeHref("HTTPS://a.b/?q=1#c")).toBe("HTTPS://a.b/?q=1#c");
  });
  it("does not choke on hostile text", () => {
    for (const bad of ["`", "*", "_", "[", "![](", "<", "> ", "- ", "|", "~~", "**a", "\\"]) parseMarkdown(bad.repeat(20_000));
    parseMarkdown(Array.from({ length: 5000 }, (_, i) => `${" ".repeat(i % 200)}- x`).join("\n"));
    expect(parseMarkdown("x".repeat(200_000))).toHaveLength(1);
  });
});
