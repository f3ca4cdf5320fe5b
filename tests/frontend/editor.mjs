// The official front-end in a headless browser: the editor comes up, a graph of three nodes is queued through the page,
// and its picture is shown. Arguments: base URL, folder for the screenshot, label.
import { chromium } from "playwright-core";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [url, folder, label] = process.argv.slice(2);
const PATIENCE = 60_000;

const flags = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const profile = mkdtempSync(join(tmpdir(), "fresco-browser-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: flags,
  viewport: { width: 1400, height: 900 },
});

const problems = [];
try {
  // The page asks a few outside hosts for news; there is no network here, and they are not the subject.
  await context.route(
    (target) => target.host !== new URL(url).host && target.protocol.startsWith("http"),
    (route) => route.abort(),
  );
  const page = context.pages()[0] ?? (await context.newPage());
  page.on("pageerror", (error) => problems.push(String(error)));

  // A first-time user is greeted by a dialog of templates, which would cover the graph.
  await post("settings/Comfy.TutorialCompleted", "true");
  // The graph the editor opens with wants models that are not here; that would be a notice over the page.
  await post("settings/Comfy.Workflow.ShowMissingModelsWarning", "false");
  await page.goto(url, { timeout: PATIENCE });
  await page.waitForFunction(() => window.app?.graph && window.LiteGraph, null, { timeout: PATIENCE });

  const known = Object.keys(await (await fetch(`${url}/object_info`)).json()).length;
  await page.waitForFunction(
    (count) => Object.keys(window.LiteGraph.registered_node_types).length >= count,
    known,
    { timeout: PATIENCE },
  );
  console.log(label, "editor up,", known, "node types");

  // A pack of the server: its script was run by the page, and its node can be put into a graph.
  const packs = await (await fetch(`${url}/api/packs`)).json();
  if (packs.packs.length > 0) {
    await page.waitForFunction(() => window.frescoPackScript === 1, null, { timeout: PATIENCE });
    const made = await page.evaluate(() => {
      const node = window.LiteGraph.createNode("PackAdd");
      return node && { title: node.title, widgets: (node.widgets ?? []).map((widget) => widget.name), category: node.constructor.category };
    });
    if (!made?.widgets.includes("a")) throw new Error(`no node of the pack: ${JSON.stringify(made)}`);
    console.log(label, "pack", JSON.stringify(made));
  }

  const colour = Math.floor(Math.random() * 0xffffff);
  const workflow = graph(colour);
  await page.evaluate((graph) => window.app.loadGraphData(graph), workflow);
  for (const attempt of ["fresh", "cached"]) {
    await page.evaluate(() => { window.app.nodeOutputs = {}; });
    if (attempt === "fresh") {
      await page.getByRole("button", { name: "Run", exact: true }).first().click({ timeout: PATIENCE });
    } else {
      await page.evaluate(() => window.app.queuePrompt(0, 1));
    }
    await page.waitForFunction(
      () => (window.app.nodeOutputs?.["3"]?.images ?? []).length === 1,
      null,
      { timeout: PATIENCE },
    );
    const image = await page.evaluate(() => window.app.nodeOutputs["3"].images[0]);
    console.log(label, attempt, "output", JSON.stringify(image));
  }

  // Shown: the node holds a decoded picture of the right size.
  await page.waitForFunction(
    () => {
      const node = window.app.graph.getNodeById(3);
      const images = [...(node?.imgs ?? []), ...document.querySelectorAll("img")];
      return images.some((image) => image.naturalWidth === 64 && image.src.includes("/view?"));
    },
    null,
    { timeout: PATIENCE },
  );
  await page.evaluate(() => window.app.canvas.setDirty(true, true));
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  await page.screenshot({ path: join(folder, `editor-${label}.png`) });
  console.log(label, "picture shown");
  if (problems.length > 0) throw new Error(`page errors: ${problems.join("\n")}`);
} catch (error) {
  const page = context.pages()[0];
  await page?.screenshot({ path: join(folder, `editor-${label}-failed.png`) }).catch(() => {});
  console.error(label, error, problems);
  process.exitCode = 1;
} finally {
  await context.close();
}

async function post(path, body) {
  const answer = await fetch(`${url}/api/${path}`, { method: "POST", body });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
}

function graph(colour) {
  return {
    last_node_id: 3,
    last_link_id: 2,
    version: 0.4,
    groups: [],
    config: {},
    extra: {},
    nodes: [
      {
        id: 1, type: "EmptyImage", pos: [60, 120], size: [300, 150], flags: {}, order: 0, mode: 0,
        inputs: [], outputs: [{ name: "IMAGE", type: "IMAGE", links: [1], slot_index: 0 }],
        properties: {}, widgets_values: [64, 64, 1, colour],
      },
      {
        id: 2, type: "ImageInvert", pos: [420, 120], size: [200, 60], flags: {}, order: 1, mode: 0,
        inputs: [{ name: "image", type: "IMAGE", link: 1 }],
        outputs: [{ name: "IMAGE", type: "IMAGE", links: [2], slot_index: 0 }],
        properties: {}, widgets_values: [],
      },
      {
        id: 3, type: "SaveImage", pos: [680, 120], size: [320, 360], flags: {}, order: 2, mode: 0,
        inputs: [{ name: "images", type: "IMAGE", link: 2 }], outputs: [],
        properties: {}, widgets_values: ["editor"],
      },
    ],
    links: [
      [1, 1, 0, 2, 0, "IMAGE"],
      [2, 2, 0, 3, 0, "IMAGE"],
    ],
  };
}
