import { describe, expect, it } from "vitest";
import { annotated, errorFrom, viewUrl } from "./client";
import { filesOf, fromAnnotated } from "./files";
import type { FileRef, JobDetails } from "./types";

describe("errorFrom", () => {
  it("reads the error object with the errors of nodes", () => {
    const nodes = {
      "3": { errors: [{ type: "value_not_in_list", message: "Value not in list", details: "ckpt_name" }], dependent_outputs: ["7"], class_type: "X" },
    };
    const e = errorFrom(
      400,
      "Bad Request",
      JSON.stringify({ error: { type: "prompt_outputs_failed_validation", message: "Invalid", details: "why" }, node_errors: nodes }),
    );
    expect(e).toMatchObject({ status: 400, type: "prompt_outputs_failed_validation", message: "Invalid", details: "why", nodeErrors: nodes });
  });
  it("leaves out an empty list of node errors", () => {
    expect(errorFrom(400, "", JSON.stringify({ error: { type: "t", message: "m" }, node_errors: [] })).nodeErrors).toBeUndefined();
    expect(errorFrom(400, "", JSON.stringify({ error: { type: "t", message: "m" }, node_errors: {} })).nodeErrors).toBeUndefined();
  });
  it("reads the plain forms", () => {
    expect(errorFrom(404, "", '{"error": "Job not found"}').message).toBe("Job not found");
    expect(errorFrom(400, "", "Directory not provided").message).toBe("Directory not provided");
    expect(errorFrom(502, "Bad Gateway", "<html>proxy</html>").message).toBe("The server answered 502 Bad Gateway");
    expect(errorFrom(500, "", "null").message).toBe("The server answered 500");
    expect(errorFrom(401, "Unauthorized", '{"error": {"type": "unauthorized", "message": "long"}}')).toMatchObject({
      type: "unauthorized",
      message: "Please sign in first",
    });
  });
});

describe("files", () => {
  const file: FileRef = { filename: "a b&c.png", subfolder: "x/y", type: "output" };
  it("makes addresses", () => {
    expect(viewUrl(file)).toBe("/api/view?filename=a+b%26c.png&subfolder=x%2Fy&type=output");
    expect(viewUrl(file, { preview: "webp", quality: 60 })).toContain("&preview=webp%3B60");
  });
  it("names files as nodes do, and reads such names back", () => {
    expect(annotated(file)).toBe("x/y/a b&c.png [output]");
    expect(annotated({ filename: "a.png", subfolder: "", type: "input" })).toBe("a.png");
    for (const f of [file, { filename: "a.png", subfolder: "", type: "input" } as const]) expect(fromAnnotated(annotated(f))).toEqual(f);
  });
  it("finds a job's files, stored before temporary, each once", () => {
    const a = { filename: "a.png", subfolder: "", type: "output" };
    const t = { filename: "t.png", subfolder: "", type: "temp" };
    const details = { outputs: { "1": { images: [t, a], animated: [false] }, "2": { images: [a], text: ["hello"] } } } as unknown as JobDetails;
    expect(filesOf(details).map((f) => f.filename)).toEqual(["a.png", "t.png"]);
  });
});
