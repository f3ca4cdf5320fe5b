// What every part of the walk needs: the program with a house of its own, a watched browser, and patient questions.
// From the environment: FRESCO_BIN (the program), CHROMIUM, OUT (a folder for pictures), PATIENCE (milliseconds).
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const { FRESCO_BIN, CHROMIUM = "/usr/bin/chromium" } = process.env;
/** How long anything may take before it counts as broken: generous, because the machine may be slow and busy. */
export const PATIENCE = Number(process.env.PATIENCE ?? 120_000);
export const SIZES = { wide: { width: 1440, height: 900 }, phone: { width: 390, height: 844 } };
export const VIEWS = ["Create", "Apps", "Graph", "Gallery", "Memory"];
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];

const root = fileURLToPath(new URL("../../../", import.meta.url));
// The page's own packages lie beside its sources.
const packages = createRequire(join(root, "web/package.json"));
const axe = readFileSync(packages.resolve("axe-core/axe.min.js"), "utf8");

export function check(holds, words) {
  if (!holds) throw new Error(words);
}

export function same(found, wanted, words) {
  const [a, b] = [found, wanted].map((x) => JSON.stringify(x));
  check(a === b, `${words}: ${a}, not ${b}`);
}

/** Asks until the answer is something. */
export async function until(words, ask) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    if (Date.now() > end) throw new Error(`waited in vain for: ${words}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** Waits until a field holds a value: the page may need a moment after a press. */
export async function holds(field, value) {
  let found;
  await until(`a field to hold ${value}`, async () => (found = await field.inputValue()) === String(value)).catch((error) => {
    throw new Error(`${error.message}; it holds ${found}`);
  });
}

/** One thing a user does. A failure is told with its name, and the page as it stood is kept as a picture. */
export async function step(page, words, work) {
  const start = Date.now();
  try {
    const done = await work();
    console.log(`page: ${((Date.now() - start) / 1000).toFixed(1).padStart(5)} s  ${words}`);
    return done;
  } catch (error) {
    if (process.env.OUT) await page.screenshot({ path: join(process.env.OUT, "failed.png") }).catch(() => undefined);
    throw new Error(`${words}: ${error.message}`, { cause: error });
  }
}

/** The program in a house of its own, which it keeps over restarts. */
export async function openHouse(flags = []) {
  check(FRESCO_BIN, "FRESCO_BIN is not set");
  const base = mkdtempSync(join(tmpdir(), "fresco-page-"));
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  let child = null;
  const house = {
    base, port, url,
    async json(path, init) {
      const answer = await fetch(`${url}${path}`, init);
      check(answer.ok, `${path} answers ${answer.status}: ${await answer.clone().text()}`);
      return answer.json();
    },
    /** Bytes of a stored file. */
    async file({ filename, subfolder = "", type }) {
      const answer = await fetch(`${url}/api/view?${new URLSearchParams({ filename, subfolder, type })}`);
      check(answer.ok, `${filename} answers ${answer.status}`);
      return Buffer.from(await answer.arrayBuffer());
    },
    job: (id) => house.json(`/api/jobs/${id}`),
    /** A job once it has ended, which must be well. */
    done: (id) => until(`job ${id} to be done`, async () => {
      const job = await house.job(id);
      check(job.status !== "failed", `job ${id} failed: ${job.execution_error?.exception_message}`);
      return job.status === "completed" ? job : null;
    }),
    async start() {
      // The starter model is found from the working directory.
      child = spawn(FRESCO_BIN, ["--port", String(port), "--base-directory", base, ...flags], { cwd: root, stdio: ["ignore", "ignore", "pipe"] });
      await ready(child);
    },
    /** Ends the program; with SIGKILL it has no say in it. */
    async stop(signal = "SIGTERM") {
      const ended = new Promise((done) => child.once("exit", done));
      child.kill(signal);
      await ended;
      child = null;
    },
    async remove() {
      if (child) await house.stop();
      rmSync(base, { recursive: true, force: true });
    },
  };
  await house.start();
  return house;
}

/** The name of the model that comes with the program; pictures cannot be made without it. */
export async function starterModel(house) {
  const names = await house.json("/api/models/checkpoints");
  const found = names.find((name) => /fresco-starter/.test(name));
  check(found, `there is no starter model: ${join(root, "starter/models/checkpoints/fresco-starter.safetensors")} must be there before the page can be walked`);
  return found;
}

function ready(child) {
  let log = "";
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`the program did not get ready:\n${log}`)), PATIENCE);
    child.stderr.on("data", (data) => {
      log = (log + data).slice(-20_000);
      if (log.includes("To see the GUI go to:")) {
        clearTimeout(late);
        resolve();
      }
    });
    child.on("exit", (code) => reject(new Error(`the program ended with ${code}:\n${log}`)));
    child.on("error", reject);
  });
}

function freePort() {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.on("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

export function openBrowser() {
  return packages("playwright-core").chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
}

/** A page with its own storage, and what is wrong with it so far: errors, refused requests, questions to other machines. */
export async function openPage(browser, house, size, options = {}) {
  const context = await browser.newContext({ viewport: SIZES[size], reducedMotion: "reduce", permissions: ["clipboard-read", "clipboard-write"], ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  const problems = [];
  const allowed = new Set();
  const watch = {
    /** While the program is away, requests fail. */
    away: false,
    /** An answer that is wanted, like "400 /api/prompt". */
    allow: (text) => allowed.add(text),
    judge: () => check(problems.length === 0, `${size}: ${[...new Set(problems)].join("; ")}`),
  };
  page.on("pageerror", (error) => problems.push(String(error)));
  // Answers are judged below: a folder of the user that is not there yet is no problem.
  page.on("console", (message) => {
    const text = message.text();
    if (message.type() === "error" && !text.startsWith("Failed to load resource") && !watch.away) problems.push(text);
  });
  page.on("response", (answer) => {
    const { pathname } = new URL(answer.url());
    const absent = answer.status() === 404 && /^(\/api)?(\/v2)?\/userdata(\/|$)/.test(pathname);
    if (answer.status() >= 400 && !absent && !allowed.has(`${answer.status()} ${pathname}`)) problems.push(`${answer.status()} ${pathname}`);
  });
  page.on("request", (request) => {
    const { host, protocol } = new URL(request.url());
    if (/^(http|ws)s?:$/.test(protocol) && host !== `127.0.0.1:${house.port}`) problems.push(`asks ${request.url()}`);
  });
  await page.goto(house.url);
  return { page, watch, close: () => context.close() };
}

/** Opens a view by its entry in the navigation. */
export async function go(page, view) {
  await page.getByRole("navigation", { name: "Views" }).getByRole("listitem").getByRole("link", { name: view }).click();
  await page.locator(`main[data-view="${view.toLowerCase()}"] h1`).first().waitFor({ state: "attached" });
}

/** Does something that queues prompts, and gives the jobs as the server keeps them. */
export async function queued(page, house, count, act) {
  const answers = [];
  const hear = (answer) => {
    if (new URL(answer.url()).pathname === "/api/prompt" && answer.request().method() === "POST") answers.push(answer);
  };
  page.on("response", hear);
  try {
    await act();
    await until(`${count} prompts to be queued`, () => answers.length >= count);
    await Promise.all(answers.map((answer) => answer.finished()));
  } finally {
    page.off("response", hear);
  }
  same(answers.length, count, "prompts queued");
  const jobs = [];
  for (const answer of answers) jobs.push(await house.job((await answer.json()).prompt_id));
  return jobs;
}

/** The inputs of the only node of a class in a job's prompt. */
export function inputs(job, classType) {
  const found = Object.values(job.workflow.prompt).filter((node) => node.class_type === classType);
  check(found.length === 1, `${found.length} nodes of class ${classType} in the prompt`);
  return found[0].inputs;
}

export function hasNode(job, classType) {
  return Object.values(job.workflow.prompt).some((node) => node.class_type === classType);
}

/** Files a job has left. */
export function filesOf(job) {
  return Object.values(job.outputs ?? {}).flatMap((output) => output.images ?? []);
}

/** Lets a file fall onto a place, as a hand would. */
export async function drop(page, place, { name, mimeType, buffer }) {
  const transfer = await page.evaluateHandle(([name, type, base64]) => {
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    const all = new DataTransfer();
    all.items.add(new File([bytes], name, { type }));
    return all;
  }, [name, mimeType, buffer.toString("base64")]);
  for (const kind of ["dragenter", "dragover", "drop"]) await place.dispatchEvent(kind, { dataTransfer: transfer });
  await transfer.dispose();
}

/** Drags with the mouse from the middle of one thing to the middle of another. */
export async function dragBetween(page, from, to) {
  const middle = async (thing) => {
    const box = await thing.boundingBox();
    check(box, "there is nothing to drag");
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  await page.mouse.move(...(await middle(from)));
  await page.mouse.down();
  const [x, y] = await middle(to);
  await page.mouse.move(x - 6, y - 6, { steps: 6 });
  await page.mouse.move(x, y, { steps: 2 });
  await page.mouse.up();
}

/** Waits until a picture is drawn, and gives its size. */
export async function drawn(picture) {
  await picture.waitFor();
  return until("the picture to be loaded", () => picture.evaluate((image) => image.complete && image.naturalWidth > 0 && [image.naturalWidth, image.naturalHeight]));
}

/** Accessibility: nothing serious may be wrong with the page as it stands. */
export async function accessible(page, words) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    return violations
      .filter((v) => v.impact === "serious" || v.impact === "critical")
      .map((v) => `${v.id} (${v.impact}): ${v.nodes.slice(0, 3).map((n) => `${n.target.join(" ")} ${n.any[0]?.message ?? ""}`).join(" | ")}`);
  });
  check(found.length === 0, `${words} is not accessible:\n  ${found.join("\n  ")}`);
}

/** Nothing may stick out to the side. */
export async function fitsWidth(page, words) {
  const [content, window_] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  check(content <= window_, `${words} is ${content} wide on a screen of ${window_}`);
}

/** The id of a workflow as Create gives it, by which it finds its own jobs. */
export const createId = (number) => `c7ea7e00-0000-4000-a000-${String(number).padStart(12, "0")}`;

/** Queues a prompt as another program would: under its own name, past the page. */
export async function ask(house, prompt, extra = {}) {
  const { prompt_id } = await house.json("/api/prompt", { method: "POST", body: JSON.stringify({ prompt, client_id: "another-program", extra_data: extra }) });
  return prompt_id;
}
