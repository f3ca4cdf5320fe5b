// The page says what is: fields show what is used, warnings reach the eye, nothing stale stays, nothing is lost without a word.
// In a house of its own, because it kills the program, pauses the queue and adds files.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { accessible, check, createId, drawn, drop, filesOf, go, hasNode, holds, inputs, openHouse, openPage, queued, same, starterModel, step, until } from "./kit.mjs";

const json = (name, value) => ({ name, mimeType: "application/json", buffer: Buffer.from(typeof value === "string" ? value : JSON.stringify(value)) });

/** A weights file with one small tensor for each name. */
function weights(path, names) {
  const header = JSON.stringify(Object.fromEntries(names.map((name, i) => [name, { dtype: "F32", shape: [2, 2], data_offsets: [i * 16, i * 16 + 16] }])));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(path, Buffer.concat([length, Buffer.from(header), Buffer.alloc(names.length * 16, 1)]));
}

const WORKFLOW = {
  version: 0.4, last_node_id: 3, last_link_id: 0, links: [],
  nodes: [
    { id: 1, type: "CheckpointLoaderSimple", pos: [40, 60], size: [300, 100], inputs: [], outputs: [], widgets_values: ["flux1-dev.safetensors"],
      properties: { models: [{ name: "flux1-dev.safetensors", url: "https://example.com/flux1-dev.safetensors", directory: "checkpoints" }] } },
    { id: 2, type: "MarkdownNote", pos: [400, 60], size: [300, 200], inputs: [], outputs: [], properties: {},
      widgets_values: ["# Models\n\n- [the model](https://example.com/model)\n- [a trap](javascript:alert(1))\n\n<script>window.trapped = 1</script> **bold** ![p](https://example.com/p.png)"] },
    { id: 3, type: "CheckpointLoaderSimple", pos: [40, 230], size: [300, 100], inputs: [], outputs: [], widgets_values: ["fresco-starter.safetensors"], properties: {} },
  ],
};

export async function walkTruth(browser) {
  const house = await openHouse();
  try {
    const model = await starterModel(house);
    const wide = await openPage(browser, house, "wide");
    await firstVisit(wide);
    const at = { ...wide, house, model };
    await fields(at);
    await holding(at);
    await editedPicture(at);
    await loraWithoutEffect(at);
    await graphFiles(at);
    await graphResult(at);
    await compared(at);
    await keptModel(at);
    await secondTab(at, browser);
    await awayAndBack(at);
    wide.watch.judge();
    await wide.close();
  } finally {
    await house.remove();
  }
}

async function firstVisit({ page }) {
  await step(page, "truth: a first visit asks for nothing that is not there", async () => {
    const refused = [];
    page.on("response", (answer) => answer.status() >= 400 && refused.push(`${answer.status()} ${new URL(answer.url()).pathname}`));
    await page.reload();
    for (const view of ["Create", "Apps", "Graph", "Gallery", "Memory"]) {
      await go(page, view);
      await page.waitForLoadState("networkidle");
    }
    same(refused, [], "refused requests");
    await go(page, "Create");
  });
}

const creating = (page) => ({
  prompt: page.getByRole("textbox", { name: "Prompt" }),
  create: page.getByRole("button", { name: /^Create( another)?$/ }),
  stage: page.getByRole("region", { name: "Pictures" }),
  width: page.getByRole("spinbutton", { name: "Width" }),
  height: page.getByRole("spinbutton", { name: "Height" }),
});

const pause = (house, paused) => house.json("/fresco/queue", { method: "POST", body: JSON.stringify({ paused }) });
const cancelAll = async (house, jobs) => house.json("/api/jobs/cancel", { method: "POST", body: JSON.stringify({ job_ids: jobs.map((j) => j.id) }) });

/** A quick picture from now on. */
async function small(page) {
  const { width, height } = creating(page);
  for (const side of [width, height]) {
    await side.fill("64");
    await side.blur();
  }
  if (!(await page.getByRole("slider", { name: "Steps" }).isVisible())) await page.getByText("Fine tuning").click();
  await page.getByRole("slider", { name: "Steps" }).fill("2");
}

async function fields({ page, house }) {
  const { prompt, create, width, height } = creating(page);
  await step(page, "truth: no field shows what is not used", async () => {
    await pause(house, true);
    await prompt.fill("a red apple");
    await width.fill("4096");
    await width.press("Tab");
    await holds(width, 2048);
    const [clamped] = await queued(page, house, 1, () => create.click());
    same(inputs(clamped, "EmptyLatentImage").width, 2048, "width after Tab");
    await width.fill("256");
    await width.press("Tab");
    // A key runs it without leaving the field.
    await height.fill("300");
    const [keyed] = await queued(page, house, 1, () => height.press("Control+Enter"));
    same(inputs(keyed, "EmptyLatentImage").height, 304, "height after Ctrl+Enter");
    await holds(height, 304);
    await page.getByText("Fine tuning").click();
    const exact = page.getByRole("group").filter({ has: page.getByText("Fine tuning") }).getByRole("spinbutton").first();
    await exact.fill("10.6");
    await exact.press("Tab");
    await holds(exact, 11);
    const [whole] = await queued(page, house, 1, () => create.click());
    same(inputs(whole, "KSampler").steps, 11, "steps");
    await cancelAll(house, [clamped, keyed, whole]);
    await pause(house, false);
  });
  await step(page, "truth: the starter model says what it draws and what it does not know", async () => {
    await prompt.fill("a submarine near the Eiffel tower");
    await page.getByText("The starter model draws icons. It does not know: submarine, Eiffel.").waitFor();
    await prompt.fill("a red apple");
    await page.getByText("The starter model draws icons.", { exact: true }).waitFor();
  });
}

async function holding({ page, house }) {
  const { prompt, create, stage } = creating(page);
  await step(page, "truth: a job on hold does not stand in place of a new picture", async () => {
    await small(page);
    await pause(house, true);
    await prompt.fill("on the shelf");
    const [held] = await queued(page, house, 1, () => create.click());
    await house.json("/fresco/queue", { method: "POST", body: JSON.stringify({ hold: [held.id], paused: false }) });
    await prompt.fill("a green leaf");
    const [job] = await queued(page, house, 1, () => create.click());
    await house.done(job.id);
    await drawn(stage.getByRole("button", { name: "a green leaf" }).first().getByRole("img"));
    await page.getByRole("navigation", { name: "Recent pictures" }).getByRole("button", { name: "on the shelf, on hold" }).waitFor();
    await page.getByRole("button", { name: "Create", exact: true }).waitFor();
    await cancelAll(house, [held]);
  });
}

async function editedPicture({ page, house, model }) {
  const { stage } = creating(page);
  await step(page, "truth: a picture with a changed area is upscaled as it is, and menus keep their words on one line", async () => {
    const mask = { filename: "area.png", subfolder: "", type: "input" };
    const values = { prompt: "a blue hat", negative: "", model, width: 64, height: 64, steps: 2, cfg: 3, seed: 5, sampler: "euler", scheduler: "normal", image: mask, mask, denoise: 0.9 };
    const prompt = {
      1: { class_type: "EmptyImage", inputs: { width: 64, height: 64, batch_size: 1, color: 255 } },
      2: { class_type: "SaveImage", inputs: { images: ["1", 0], filename_prefix: "edited" } },
    };
    const { prompt_id } = await house.json("/api/prompt", { method: "POST", body: JSON.stringify({ prompt, extra_data: { fresco_create: values, extra_pnginfo: { workflow: { id: createId(1) } } } }) });
    await house.done(prompt_id);
    await page.getByRole("navigation", { name: "Recent pictures" }).getByRole("button", { name: "a blue hat" }).first().click();
    const upscale = stage.getByRole("button", { name: "Upscale" });
    await upscale.waitFor();
    for (const width of [1440, 390]) {
      await page.setViewportSize({ width, height: 900 });
      await stage.getByRole("button", { name: "Variations" }).click();
      // The menu is placed again when the page around it has found its new width: ask until it has.
      let wrong = [];
      for (let tries = 0; tries < 20; tries += 1) {
        wrong = await page.getByRole("menuitem").evaluateAll((items) => items.flatMap((item) => {
          const box = item.getBoundingClientRect();
          if (box.height >= 48) return [`“${item.innerText}” takes more than a line: ${box.height} px`];
          if (box.left < 0 || box.right > innerWidth) return [`“${item.innerText}” sticks out of a screen of ${innerWidth} px: ${box.left} to ${box.right}`];
          return [];
        }));
        if (wrong.length === 0) break;
        await page.waitForTimeout(50);
      }
      same(wrong, [], "items");
      await page.keyboard.press("Escape");
    }
    await page.setViewportSize({ width: 1440, height: 900 });
    const [larger] = await queued(page, house, 1, () => upscale.click());
    check(!hasNode(larger, "KSampler"), "it is drawn over with the words of its change");
    same([inputs(larger, "ImageScale").width, inputs(larger, "ImageScale").height], [128, 128], "size");
    await house.done(larger.id);
  });
}

async function loraWithoutEffect({ page, house }) {
  const { prompt, create, stage } = creating(page);
  await step(page, "truth: a LoRA that changes nothing says so, on the page and at its node", async () => {
    const folder = join(house.base, "models/loras");
    mkdirSync(folder, { recursive: true });
    weights(join(folder, "stranger.safetensors"), ["lora_unet_nowhere.lora_up.weight", "lora_unet_nowhere.lora_down.weight"]);
    await page.getByRole("button", { name: "Refresh the list of models" }).click();
    await page.getByText("LoRAs", { exact: true }).click();
    await page.getByRole("button", { name: "Add a LoRA" }).click();
    await prompt.fill("a red apple");
    const [job] = await queued(page, house, 1, () => create.click());
    const done = await house.done(job.id);
    same(filesOf(done).length, 1, "pictures");
    await stage.getByText(/The LoRA stranger\.safetensors changes nothing/).waitFor();
    await accessible(page, "a picture with a warning");
    await stage.getByRole("button", { name: "More" }).click();
    await page.getByRole("menuitem", { name: "Open in Graph" }).click();
    const node = page.getByRole("group", { name: /^LoRA, node 20$/ });
    await node.waitFor();
    const [again] = await queued(page, house, 1, () => page.getByRole("button", { name: "Run" }).click());
    await house.done(again.id);
    await node.getByText(/changes nothing/).waitFor();
    await go(page, "Create");
    await page.getByRole("button", { name: "Remove stranger" }).click();
  });
}

async function graphFiles({ page, watch }) {
  const canvas = page.locator(".react-flow");
  const card = (name) => page.getByRole("group", { name, exact: true });
  await step(page, "truth: a dropped workflow says what it lacks and where to get it, and its notes are read", async () => {
    await go(page, "Graph");
    await drop(page, canvas, json("flux.json", WORKFLOW));
    const loader = card("Load Checkpoint, node 1");
    const notice = loader.getByRole("alert");
    await notice.getByText("“flux1-dev.safetensors” is not on this machine. It belongs in the folder models/checkpoints.").waitFor();
    const link = notice.getByRole("link", { name: "Download" });
    same([await link.getAttribute("href"), await link.getAttribute("target"), await link.getAttribute("rel")], ["https://example.com/flux1-dev.safetensors", "_blank", "noopener noreferrer"], "link");
    check(!(await notice.innerText()).includes("fresco-starter"), "the closest name is that of another model");
    const [upper, lower] = [await loader.boundingBox(), await card("Load Checkpoint, node 3").boundingBox()];
    check(upper.y + upper.height <= lower.y, "the node grew over its neighbour");
    const told = await notice.boundingBox();
    check(told.height < 40, `the notice is ${told.height} high while nobody looks at it`);
    await notice.hover();
    await until("the whole notice to be on top", () => notice.evaluate((element) => {
      const box = element.getBoundingClientRect();
      return box.height > 30 && element.contains(document.elementFromPoint(box.x + box.width / 2, box.bottom - 4));
    }));
    const note = card("Note, node 2");
    await note.getByRole("heading", { name: "Models" }).waitFor();
    const model = note.getByRole("link", { name: "the model" });
    same([await model.getAttribute("href"), await model.getAttribute("target"), await model.getAttribute("rel")], ["https://example.com/model", "_blank", "noopener noreferrer"], "link of the note");
    same(await note.getByRole("link", { name: "a trap" }).count(), 0, "links that run something");
    same([await note.getByRole("img", { name: "p", exact: true }).count(), await page.evaluate(() => window.trapped ?? null)], [0, null], "what the note loaded or ran");
    await note.getByRole("button", { name: "Edit Note" }).click();
    await note.getByRole("textbox", { name: "Text" }).fill("changed");
    await note.getByRole("textbox", { name: "Text" }).blur();
    await note.getByText("changed").waitFor();
    await accessible(page, "the graph with a note");
  });

  await step(page, "truth: a file that is no workflow changes nothing, and one that is can be undone", async () => {
    watch.allow("400 /fresco/workflow");
    for (const [i, garbage] of ['{"5": {"class_type": 5}}', '{"nodes": [5], "links": []}', "[5]", '{"prompt": {"5": {}}}', "5"].entries()) {
      await drop(page, canvas, json(`garbage-${i}.json`, garbage));
      await page.getByText(new RegExp(`garbage-${i}\\.json contains no workflow`)).waitFor();
      check(await card("Note, node 2").isVisible(), `${garbage} was opened`);
    }
    // Also after a reload, when nothing was changed since.
    await page.reload();
    await card("Note, node 2").waitFor();
    await drop(page, canvas, json("other.json", { version: 0.4, links: [], nodes: [{ id: 9, type: "PreviewImage", pos: [0, 0], inputs: [], outputs: [] }] }));
    await card("Preview Image, node 9").waitFor();
    await page.getByRole("button", { name: "Undo (Ctrl+Z)" }).click();
    await card("Note, node 2").waitFor();
    await card("Preview Image, node 9").waitFor({ state: "detached" });
  });
}

async function graphResult({ page, house }) {
  const card = (name) => page.getByRole("group", { name, exact: true });
  await step(page, "truth: what a graph made is still there after a reload", async () => {
    await page.getByRole("toolbar", { name: "Graph tools" }).getByRole("button", { name: "File" }).click();
    await page.getByRole("menuitem", { name: "New text-to-picture workflow", exact: true }).click();
    const put = async (node, name, value) => {
      const field = card(node).getByRole("textbox", { name, exact: true });
      await field.fill(value);
      await field.blur();
    };
    await put("KSampler, node 5", "steps", "2");
    for (const side of ["width", "height"]) await put("Empty Latent Image, node 4", side, "64");
    const [job] = await queued(page, house, 1, () => page.getByRole("button", { name: "Run" }).click());
    await house.done(job.id);
    const picture = card("Save Image, node 7").getByRole("img", { name: /^Picture Fresco/ });
    await drawn(picture);
    await page.reload();
    await drawn(picture);
    // And what a run made while another view was open.
    await put("KSampler, node 5", "steps", "3");
    const [other] = await queued(page, house, 1, () => page.getByRole("button", { name: "Run" }).click());
    await go(page, "Memory");
    const [file] = filesOf(await house.done(other.id));
    await go(page, "Graph");
    await drawn(card("Save Image, node 7").getByRole("img", { name: `Picture ${file.filename}` }));
  });
}

async function compared({ page, house }) {
  await step(page, "truth: the compare slider's line stands where its number says, whatever the shapes", async () => {
    const made = [];
    for (const [width, height] of [[96, 64], [64, 128]]) {
      const prompt = { 1: { class_type: "EmptyImage", inputs: { width, height, batch_size: 1, color: 255 } }, 2: { class_type: "SaveImage", inputs: { images: ["1", 0], filename_prefix: "shape" } } };
      made.push(await house.done((await house.json("/api/prompt", { method: "POST", body: JSON.stringify({ prompt }) })).prompt_id));
    }
    for (const viewport of [{ width: 1440, height: 900 }, { width: 390, height: 844 }, { width: 1440, height: 500 }]) {
      for (const [a, b, ratio] of [[made[0], made[1], 1.5], [made[1], made[0], 0.5]]) {
        await page.setViewportSize(viewport);
        await page.evaluate(([x, y]) => (location.hash = `#/gallery/compare/${x}/${y}`), [a.id, b.id]);
        const pictureA = page.getByRole("img", { name: "Picture A" });
        await drawn(pictureA);
        const range = page.getByRole("slider", { name: "How much of A is shown" });
        let frame;
        await until("the frame to have the picture's shape", async () => {
          frame = await pictureA.boundingBox();
          return Math.abs(frame.width / frame.height / ratio - 1) < 0.02;
        });
        const handle = await range.boundingBox();
        check(Math.abs(handle.x + handle.width / 2 - (frame.x + frame.width / 2)) < 2 && Math.abs(handle.width - frame.width) < 20, "the slider is not as wide as the picture");
        await page.mouse.move(frame.x + frame.width * 0.5, frame.y + 20);
        await page.mouse.down();
        await page.mouse.move(frame.x + frame.width * 0.25, frame.y + 20);
        await page.mouse.up();
        await holds(range, 25);
        // The keys go on from there.
        await page.keyboard.press("ArrowRight");
        await holds(range, 26);
      }
    }
    await page.getByText("They have different shapes").waitFor();
    await page.setViewportSize({ width: 1440, height: 900 });
  });

  await step(page, "truth: an app counts its nodes as nodes", async () => {
    await page.evaluate(() => (location.hash = "#/apps/~words"));
    await page.getByText(/^\d+ nodes$/).waitFor();
    same(await page.getByText(/^\d+ steps$/).count(), 0, "nodes that are called steps");
  });
}

async function keptModel({ page, house, model }) {
  await step(page, "truth: a model that is to be kept does not go without a word", async () => {
    await go(page, "Memory");
    await page.getByText("Parts", { exact: true }).click();
    const part = page.getByRole("article", { name: `Picture model of ${model}` });
    await part.getByRole("combobox", { name: /^How long it stays/ }).selectOption("keep");
    await part.getByText("It stays loaded because you chose that here.").waitFor();
    const dialog = page.getByRole("dialog", { name: "One model is set to stay" });
    const loaded = async () => (await house.json("/api/memory")).models.filter((m) => m.host_bytes > 0).map((m) => m.component);
    await page.getByRole("button", { name: "Free model and node cache" }).click();
    await dialog.getByText(`Picture model of ${model}`).waitFor();
    await accessible(page, "the question");
    await dialog.getByRole("button", { name: "Free only the others" }).click();
    await page.getByRole("status").filter({ hasText: "1 kept model stayed." }).first().waitFor();
    same(await loaded(), ["diffusion"], "what is left in memory");
    await page.getByRole("button", { name: "Free model and node cache" }).click();
    await dialog.getByRole("button", { name: "Eject it too" }).click();
    await until("nothing to be in memory", async () => (await loaded()).length === 0);
  });
}

async function secondTab({ page, house }, browser) {
  const { prompt, create, stage, width, height } = creating(page);
  await step(page, "truth: a second tab sees the picture grow, and a page opened late does not call it almost done", async () => {
    await go(page, "Create");
    await page.getByRole("slider", { name: "Steps" }).or(page.getByText("Fine tuning")).first().waitFor();
    if (!(await page.getByRole("slider", { name: "Steps" }).isVisible())) await page.getByText("Fine tuning").click();
    await page.getByRole("slider", { name: "Steps" }).fill("60");
    for (const side of [width, height]) {
      await side.fill("512");
      await side.blur();
    }
    await prompt.fill("a red apple");
    const [job] = await queued(page, house, 1, () => create.click());
    await stage.getByText(/Step \d+ of 60/).waitFor();
    const other = await openPage(browser, house, "wide");
    const seen = creating(other.page).stage;
    await drawn(seen.getByRole("img", { name: "Growing: a red apple" }));
    await seen.getByText(/Step \d+ of 60/).waitFor();
    same(await seen.getByText("almost done").count(), 0, "promises at the start");
    other.watch.judge();
    await other.close();
    await cancelAll(house, [job]);
    await until("the job to be cancelled", async () => (await house.job(job.id)).status === "cancelled");
  });
}

async function awayAndBack({ page, house, watch }) {
  const { create, stage } = creating(page);
  await step(page, "truth: a restarted job's clock starts anew, and what was said while the program was away goes", async () => {
    const [job] = await queued(page, house, 1, () => create.click());
    await stage.getByText(/Step [3-9] of 60/).waitFor();
    await go(page, "Gallery");
    const running = page.getByRole("region", { name: "Queue" }).getByRole("article");
    await running.getByText(/Step \d+ of 60 · /).waitFor();
    watch.away = true;
    await house.stop("SIGKILL");
    await running.getByText("Waiting for Fresco").waitFor();
    await go(page, "Create");
    await create.click();
    const box = page.getByRole("alert").filter({ hasText: "Fresco does not answer." });
    await box.waitFor();
    const back = Date.now();
    await house.start();
    await box.waitFor({ state: "detached" });
    watch.away = false;
    await go(page, "Gallery");
    const words = await until("the clock to go again", async () => /· ([\d.]+) s/.exec(await running.innerText().catch(() => "")));
    check(Number(words[1]) <= (Date.now() - back) / 1000 + 1, `the clock says ${words[1]} s, ${(Date.now() - back) / 1000} s after the program came back`);
    // A second time, and the program itself holds the job: it says why, wherever the job is shown.
    watch.away = true;
    await house.stop("SIGKILL");
    await house.start();
    await page.getByRole("region", { name: "Queue" }).getByText(/^On hold: \S/).waitFor();
    watch.away = false;
    await go(page, "Create");
    await page.getByRole("navigation", { name: "Recent pictures" }).getByRole("button", { name: "a red apple, on hold" }).click();
    await stage.getByText("On hold", { exact: true }).waitFor();
    await stage.getByRole("button", { name: "Release" }).click();
    await stage.getByText(/Step \d+ of 60/).waitFor();
    await cancelAll(house, [job]);
  });
}
