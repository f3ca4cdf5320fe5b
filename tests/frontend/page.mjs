// Our page in a headless browser: it comes up, shows its five views, and asks nobody else for anything.
// From the environment: FRESCO_BIN (the program), CHROMIUM, OUT (a folder for pictures).
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

// The page's own packages lie beside its sources.
const { chromium } = createRequire(new URL("../../web/package.json", import.meta.url))("playwright-core");

const { FRESCO_BIN, CHROMIUM = "/usr/bin/chromium", OUT } = process.env;
const PATIENCE = 60_000;
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const VIEWS = ["Create", "Apps", "Graph", "Gallery", "Memory"];
const SIZES = { phone: { width: 390, height: 844 }, wide: { width: 1440, height: 900 } };

const base = mkdtempSync(join(tmpdir(), "fresco-page-"));
const port = await freePort();
const url = `http://127.0.0.1:${port}`;
const server = await start();
const browser = await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
try {
  for (const [name, viewport] of Object.entries(SIZES)) await walk(name, viewport);
  console.log("page: five views on", Object.keys(SIZES).join(" and "));
} finally {
  await browser.close();
  server.kill("SIGTERM");
  rmSync(base, { recursive: true, force: true });
}

async function walk(name, viewport) {
  const page = await browser.newPage({ viewport });
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  // Answers are judged below: a folder of the user that is not there yet is no problem.
  const refused = (text) => text.startsWith("Failed to load resource");
  page.on("console", (message) => message.type() === "error" && !refused(message.text()) && problems.push(message.text()));
  page.on("response", (answer) => {
    const { pathname } = new URL(answer.url());
    const absent = answer.status() === 404 && /^(\/api)?(\/v2)?\/userdata(\/|$)/.test(pathname);
    if (answer.status() >= 400 && !absent) problems.push(`${answer.status()} ${pathname}`);
  });
  page.on("request", (request) => {
    const { host, protocol } = new URL(request.url());
    if (/^(http|ws)s?:$/.test(protocol) && host !== `127.0.0.1:${port}`) problems.push(`asks ${request.url()}`);
  });
  await page.goto(url, { timeout: PATIENCE });
  const entries = page.getByRole("navigation", { name: "Views" }).getByRole("listitem").getByRole("link");
  await entries.first().waitFor({ timeout: PATIENCE });
  const shown = await entries.count();
  if (shown !== VIEWS.length) throw new Error(`${shown} views in the navigation`);
  for (const view of VIEWS) {
    await entries.filter({ hasText: view }).click({ timeout: PATIENCE });
    await page.locator(`main[data-view="${view.toLowerCase()}"] h1`).first().waitFor({ state: "attached", timeout: PATIENCE });
    await page.screenshot({ path: join(OUT ?? base, `${view.toLowerCase()}-${name}.png`) });
  }
  if (problems.length > 0) throw new Error(`${name}: ${problems.join("; ")}`);
  await page.close();
}

async function start() {
  if (!FRESCO_BIN) throw new Error("FRESCO_BIN is not set");
  const child = spawn(FRESCO_BIN, ["--port", String(port), "--base-directory", base], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`the program did not get ready:\n${log}`)), PATIENCE);
    child.stderr.on("data", (data) => {
      log += data;
      if (log.includes("To see the GUI go to:")) {
        clearTimeout(late);
        resolve();
      }
    });
    child.on("exit", (code) => reject(new Error(`the program ended with ${code}:\n${log}`)));
    child.on("error", reject);
  });
  return child;
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
