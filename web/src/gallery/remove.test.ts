import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { FileRef, Job } from "../api/types";
import { useLive } from "../state/live";
import { finished, removable, removeJobs, stillThere } from "./remove";

const file = (filename: string, type: FileRef["type"] = "output"): FileRef => ({ filename, subfolder: "", type });

test("input files and files of other results are left", () => {
  const own = new Map([
    ["a", [file("1.png"), file("in.png", "input")]],
    ["b", [file("1.png"), file("2.png")]],
  ]);
  expect(removable(own, [file("2.png"), file("9.png")])).toEqual({ files: [file("1.png")], kept: [file("2.png")] });
});

test("a result stays while one of its files does", () => {
  const own = new Map([
    ["a", [file("1.png")]],
    ["b", [file("2.png"), file("3.png")]],
    ["c", []],
  ]);
  expect(finished(own, [{ file: file("3.png"), reason: "denied" }])).toEqual(["a", "c"]);
});

test("a file that is gone already counts as deleted", () => {
  const failed = [
    { file: file("1.png"), reason: "no such file" },
    { file: file("2.png"), reason: "permission denied" },
  ];
  expect(stillThere(failed).map((f) => f.reason)).toEqual(["permission denied"]);
});

const jobs = ["a", "b", "c"].map((id): Job => ({ id, status: "completed", create_time: 1, preview_output: file(`${id}.png`) }));
let sent: [string, unknown][] = [];

function server(deleteAnswer: (files: FileRef[]) => Response) {
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => {
    if (init?.method === "POST") sent.push([path, JSON.parse(String(init.body))]);
    if (path === "/fresco/outputs/delete") return deleteAnswer(JSON.parse(String(init?.body)).files);
    const id = /^\/api\/jobs\/(.*)$/.exec(path)?.[1];
    if (id === "gone") return new Response(JSON.stringify({ error: "not found" }), { status: 404 });
    const outputs = { "9": { images: [file(`${id}.png`)] } };
    return new Response(id ? JSON.stringify({ id, status: "in_progress", create_time: 1, outputs, workflow: { prompt: {}, extra_data: {} } }) : "");
  });
}

beforeEach(() => {
  sent = [];
  useLive.setState({ jobs, refresh: async () => undefined });
});
afterEach(() => vi.unstubAllGlobals());

test("files go first, then the entries of those that are gone", async () => {
  server((files) => new Response(JSON.stringify({ deleted: [files[0]], failed: [{ file: files[1], reason: "permission denied" }] })));
  const done = removeJobs(["a", "b"]);
  expect(useLive.getState().jobs.map((j) => j.id)).toEqual(["c"]);
  expect(await done).toEqual({ gone: ["a"], failed: [{ file: file("b.png"), reason: "permission denied" }], kept: [] });
  expect(sent).toEqual([
    ["/fresco/outputs/delete", { files: [file("a.png"), file("b.png")] }],
    ["/api/history", { delete: ["a"] }],
  ]);
});

test("a refused request brings the tiles back and keeps the entries", async () => {
  server(() => new Response("", { status: 404, statusText: "Not Found" }));
  await expect(removeJobs(["a"])).rejects.toThrow("404");
  expect(useLive.getState().jobs.map((j) => j.id)).toEqual(["a", "b", "c"]);
  expect(sent.map(([path]) => path)).toEqual(["/fresco/outputs/delete"]);
});

test("a result that another window deleted does not keep the others", async () => {
  server((files) => Response.json({ deleted: files, failed: [] }));
  const removal = await removeJobs(["gone", "a"]);
  expect(removal.gone).toEqual(["gone", "a"]);
  expect(sent[0]).toEqual(["/fresco/outputs/delete", { files: [file("a.png")] }]);
});
