// From words to a picture in the official front-end: the workflow the editor is known for, on a small checkpoint. Live
// previews must arrive and be shown, and the saved picture too. Arguments: base URL, folder for the screenshots, label.
import { chromium } from "playwright-core";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [url, folder, label] = process.argv.slice(2);
const PATIENCE = 90_000;

const flags = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const profile = mkdtempSync(join(tmpdir(), "fresco-browser-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: flags,
  viewport: { width: 1500, height: 900 },
});

const problems = [];
try {
  await context.route(
    (target) => target.host !== new URL(url).host && target.protocol.startsWith("http"),
    (route) => route.abort(),
  );
  const page = context.pages()[0] ?? (await context.newPage());
  page.on("pageerror", (error) => problems.push(String(error)));
  await post("settings/Comfy.TutorialCompleted", "true");
  await post("settings/Comfy.Workflow.ShowMissingModelsWarning", "false");
  await page.goto(url, { timeout: PATIENCE });
  await page.waitForFunction(() => window.app?.graph && window.LiteGraph, null, { timeout: PATIENCE });
  const known = Object.keys(await (await fetch(`${url}/object_info`)).json()).length;
  await page.waitForFunction(
    (count) => Object.keys(window.LiteGraph.registered_node_types).length >= count,
    known,
    { timeout: PATIENCE },
  );
  await page.evaluate((graph) => window.app.loadGraphData(graph), graph());
  await page.evaluate(() => {
    window.previews = 0;
    window.steps = [];
    window.app.api.addEventListener("b_preview", () => { window.previews += 1; });
    window.app.api.addEventListener("progress", (event) => { window.steps.push(event.detail.value); });
  });
  await page.getByRole("button", { name: "Run", exact: true }).first().click({ timeout: PATIENCE });
  await page.waitForFunction(() => window.previews >= 3, null, { timeout: PATIENCE });
  await settle(page);
  await page.screenshot({ path: join(folder, `words-${label}-preview.png`) });
  await page.waitForFunction(
    () => (window.app.nodeOutputs?.["9"]?.images ?? []).length === 1,
    null,
    { timeout: PATIENCE },
  );
  await page.waitForFunction(
    () => {
      const node = window.app.graph.getNodeById(9);
      const images = [...(node?.imgs ?? []), ...document.querySelectorAll("img")];
      return images.some((image) => image.naturalWidth === 256 && image.src.includes("/view?"));
    },
    null,
    { timeout: PATIENCE },
  );
  await settle(page);
  await page.screenshot({ path: join(folder, `words-${label}.png`) });
  const seen = await page.evaluate(() => ({ previews: window.previews, last: window.steps.at(-1) }));
  console.log(label, "words to picture:", seen.previews, "previews, step", seen.last);
  if (seen.last !== 40) throw new Error(`the last step shown is ${seen.last}`);
  if (problems.length > 0) throw new Error(`page errors: ${problems.join("\n")}`);
} catch (error) {
  const page = context.pages()[0];
  await page?.screenshot({ path: join(folder, `words-${label}-failed.png`) }).catch(() => {});
  console.error(label, error, problems);
  process.exitCode = 1;
} finally {
  await context.close();
}

async function settle(page) {
  await page.evaluate(() => window.app.canvas.setDirty(true, true));
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

async function post(path, body) {
  const answer = await fetch(`${url}/api/${path}`, { method: "POST", body });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
}

function graph() {
  const node = (id, type, pos, size, inputs, outputs, widgets_values) => ({
    id, type, pos, size, flags: {}, order: 0, mode: 0, inputs, outputs, properties: {}, widgets_values,
  });
  const input = (name, type, link) => ({ name, type, link });
  const output = (type, links) => ({ name: type, type, links });
  return {
    last_node_id: 9,
    last_link_id: 9,
    version: 0.4,
    groups: [],
    config: {},
    extra: {},
    nodes: [
      node(4, "CheckpointLoaderSimple", [20, 420], [300, 100], [],
        [output("MODEL", [1]), output("CLIP", [3, 5]), output("VAE", [8])], ["model.safetensors"]),
      node(6, "CLIPTextEncode", [360, 120], [380, 160], [input("clip", "CLIP", 3)],
        [output("CONDITIONING", [4])], ["a red apple on a table"]),
      node(7, "CLIPTextEncode", [360, 330], [380, 140], [input("clip", "CLIP", 5)],
        [output("CONDITIONING", [6])], ["blurry"]),
      node(5, "EmptyLatentImage", [420, 540], [300, 110], [], [output("LATENT", [2])], [256, 256, 1]),
      node(3, "KSampler", [780, 120], [300, 480],
        [input("model", "MODEL", 1), input("positive", "CONDITIONING", 4),
          input("negative", "CONDITIONING", 6), input("latent_image", "LATENT", 2)],
        [output("LATENT", [7])], [7, "fixed", 40, 7, "euler", "normal", 1]),
      node(8, "VAEDecode", [1110, 120], [180, 50],
        [input("samples", "LATENT", 7), input("vae", "VAE", 8)], [output("IMAGE", [9])], []),
      node(9, "SaveImage", [1110, 240], [340, 380], [input("images", "IMAGE", 9)], [], ["words"]),
    ],
    links: [
      [1, 4, 0, 3, 0, "MODEL"], [2, 5, 0, 3, 3, "LATENT"], [3, 4, 1, 6, 0, "CLIP"], [4, 6, 0, 3, 1, "CONDITIONING"],
      [5, 4, 1, 7, 0, "CLIP"], [6, 7, 0, 3, 2, "CONDITIONING"], [7, 3, 0, 8, 0, "LATENT"], [8, 4, 2, 8, 1, "VAE"],
      [9, 8, 0, 9, 0, "IMAGE"],
    ],
  };
}
