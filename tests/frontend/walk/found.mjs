// What people found when they used the page: work that was lost, jobs of others in place of one's own, words that hid the reason.
// In a house of its own, because it fills the list of jobs and takes the network away.
import { writeFileSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { accessible, ask, check, createId, drawn, drop, fitsWidth, go, holds, inputs, hasNode, openHouse, openPage, queued, same, starterModel, step, until } from "./kit.mjs";

export async function walkFound(browser) {
  const house = await openHouse();
  try {
    const model = await starterModel(house);
    const wide = await openPage(browser, house, "wide");
    const at = { ...wide, house, model, browser };
    await bareViews(at);
    await notFetched(at);
    await editAndCancel(at);
    await painterWithPrompt(at);
    await films(at);
    await others(at);
    await manyPictures(at);
    await reasons(at);
    await dropped(at);
    await graphHabits(at);
    await names(at);
    await definitions(at);
    wide.watch.judge();
    await wide.close();
  } finally {
    await house.remove();
  }
  await signIn(browser);
}

const stageOf = (page) => page.getByRole("region", { name: "Pictures" });
const promptOf = (page) => page.getByRole("textbox", { name: "Prompt", exact: true });
const createOf = (page) => page.getByRole("button", { name: /^Create( another)?$/ });
const recent = (page) => page.getByRole("navigation", { name: "Recent pictures" });

/** A prompt that another program sends: one or more plain pictures. */
const plain = (count, color = 255) => ({
  1: { class_type: "EmptyImage", inputs: { width: 64, height: 64, batch_size: count, color } },
  2: { class_type: "SaveImage", inputs: { images: ["1", 0], filename_prefix: "other" } },
});

/** A small and quick picture from the form. */
async function quick(page, house, words) {
  for (const name of ["Width", "Height"]) {
    const side = page.getByRole("spinbutton", { name });
    await side.fill("64");
    await side.blur();
  }
  if (!(await page.getByRole("slider", { name: "Steps" }).isVisible())) await page.getByText("Fine tuning").click();
  await page.getByRole("slider", { name: "Steps" }).fill("2");
  await promptOf(page).fill(words);
  const [job] = await queued(page, house, 1, () => createOf(page).click());
  await house.done(job.id);
  await drawn(stageOf(page).getByRole("button", { name: words }).first().getByRole("img"));
  return job;
}

async function bareViews({ page }) {
  await step(page, "found: an empty queue takes no column, and the model stands under the prompt", async () => {
    await go(page, "Gallery");
    const queue = await page.getByRole("region", { name: "Queue" }).boundingBox();
    check(queue.height < 80, `the empty queue is ${queue.height} px high`);
    await page.getByText("The queue is empty.").waitFor();
    await go(page, "Create");
    const [prompt, model, button] = await Promise.all(
      [promptOf(page), page.getByRole("combobox", { name: "Model" }), createOf(page)].map((thing) => thing.boundingBox()),
    );
    check(prompt.y < model.y && model.y < button.y, "the model does not stand between the prompt and the button");
  });
}

/** The network goes before a view was ever opened, and before the page had time to fetch it. */
async function notFetched({ browser, house }) {
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await step(page, "found: a view that cannot be fetched says so, and opens when the program is back", async () => {
    // The files of the views that are not open yet are refused.
    let away = true;
    await page.route(/\/assets\/(apps|graph|gallery|memory)\./, (route) => (away ? route.abort() : route.continue()));
    await page.goto(house.url);
    await promptOf(page).waitFor();
    await page.getByRole("navigation", { name: "Views" }).getByRole("link", { name: /^Memory/ }).click();
    await page.getByRole("heading", { name: "Fresco does not answer" }).waitFor();
    same(await page.getByText("This view stopped working").count(), 0, "views that stopped working");
    away = false;
    await page.getByRole("button", { name: "Try again" }).click();
    await page.getByRole("region", { name: "Devices" }).waitFor();
    const styled = await page.getByRole("region", { name: "Devices" }).locator("div").first().evaluate((element) => getComputedStyle(element).display);
    same(styled, "grid", "how the devices are laid out");
    same(errors, [], "exceptions");
  });
  await step(page, "found: a view that was never opened opens without a network", async () => {
    await page.goto(house.url);
    await promptOf(page).waitFor();
    // The page fetches its views by itself when it has nothing to do.
    await page.waitForFunction(() => ["apps", "graph", "gallery", "memory"].every((name) => performance.getEntriesByType("resource").some((r) => r.name.endsWith(`/${name}.js`))));
    await context.setOffline(true);
    await page.evaluate(() => (location.hash = "#/graph"));
    await page.getByRole("toolbar", { name: "Graph tools" }).waitFor();
    await context.setOffline(false);
    same(errors, [], "exceptions");
  });
  await context.close();
}

async function editAndCancel({ page, house }) {
  await step(page, "found: Edit area and Cancel leave the form as it was", async () => {
    await go(page, "Create");
    await quick(page, house, "a red apple");
    await stageOf(page).getByRole("button", { name: "Edit area" }).click();
    const dialog = page.getByRole("dialog", { name: "Paint the area to change" });
    await dialog.getByRole("application").waitFor();
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await dialog.waitFor({ state: "detached" });
    await page.getByLabel("Start from a picture").waitFor({ state: "attached" });
    await holds(page.getByRole("spinbutton", { name: "Width" }), 64);
    const [job] = await queued(page, house, 1, () => createOf(page).click());
    check(!hasNode(job, "LoadImage"), "the picture stayed in the form");
    same(inputs(job, "KSampler").denoise, 1, "how much is drawn");
    await house.done(job.id);
  });
}

async function painterWithPrompt({ page, house }) {
  await step(page, "found: the painter has the prompt and Create inside", async () => {
    await stageOf(page).getByRole("button", { name: "Edit area" }).first().click();
    const dialog = page.getByRole("dialog", { name: "Paint the area to change" });
    const canvas = dialog.getByRole("application");
    await canvas.waitFor();
    await dialog.getByRole("button", { name: "Create" }).click();
    await dialog.getByText("Nothing is painted yet.").waitFor();
    await canvas.press(" ");
    await dialog.getByRole("textbox", { name: "What should be there instead" }).fill("a blue cup");
    await accessible(page, "the painter with its prompt");
    const [job] = await queued(page, house, 1, () => dialog.getByRole("button", { name: "Create" }).click());
    await dialog.waitFor({ state: "detached" });
    check(hasNode(job, "SetLatentNoiseMask"), "the area is not in the prompt");
    check(Object.values(job.workflow.prompt).some((node) => node.inputs.text === "a blue cup"), "the words are not in the prompt");
    await house.done(job.id);
    await page.getByRole("button", { name: "Remove the start picture" }).click();
  });
}

async function films({ page, house }) {
  await step(page, "found: a film and a sound on Create are played, not called cancelled", async () => {
    const film = {
      1: { class_type: "EmptyImage", inputs: { width: 96, height: 64, batch_size: 6, color: 0x3060c0 } },
      2: { class_type: "CreateVideo", inputs: { images: ["1", 0], fps: 6 } },
      3: { class_type: "SaveVideo", inputs: { video: ["2", 0], filename_prefix: "found", format: "auto", codec: "auto" } },
    };
    const sound = {
      1: { class_type: "EmptyAudio", inputs: { duration: 1, sample_rate: 44100, channels: 1 } },
      2: { class_type: "SaveAudio", inputs: { audio: ["1", 0], filename_prefix: "found" } },
    };
    for (const [number, prompt, name, tag] of [[21, film, "video", "video"], [22, sound, "sound", "audio"]]) {
      await house.done(await ask(house, prompt, { extra_pnginfo: { workflow: { id: createId(number) } } }));
      const thumb = recent(page).getByRole("button", { name: `Untitled, ${name}` });
      await thumb.click();
      await stageOf(page).locator(tag).waitFor();
      same(await stageOf(page).getByText("Cancelled").count(), 0, "words of cancelling");
      await stageOf(page).getByRole("button", { name: "Download" }).waitFor();
    }
    same(await recent(page).getByRole("button", { name: /cancelled/ }).count(), 0, "jobs that look cancelled");
    await accessible(page, "a film on Create");
  });
}

async function others({ page, house }) {
  await step(page, "found: 300 jobs of another program do not take the place of one's own pictures", async () => {
    await recent(page).getByRole("button", { name: "a red apple" }).first().waitFor();
    const before = await recent(page).getByRole("button").count();
    const ids = [];
    for (let i = 0; i < 300; i += 1) ids.push(await ask(house, plain(1, i)));
    for (const id of ids) await house.done(id);
    await page.reload();
    await recent(page).getByRole("button", { name: "a red apple" }).first().waitFor();
    same(await recent(page).getByRole("button").count(), before, "recent pictures");
    await go(page, "Gallery");
    // What is listed is not all there is.
    await page.getByRole("heading", { level: 2, name: /^Today \d+\+$/ }).waitFor();
    // What is opened from there is shown on Create all the same.
    await page.evaluate((id) => (location.hash = `#/gallery/${id}`), ids[0]);
    await page.getByRole("button", { name: "Run again" }).waitFor();
    await go(page, "Create");
  });
}

async function manyPictures({ page, house }) {
  await step(page, "found: thirty pictures of one job stand in two columns, with a slider, and their actions stay in reach", async () => {
    await house.done(await ask(house, plain(30), { extra_pnginfo: { workflow: { id: createId(30) } } }));
    await recent(page).getByRole("button", { name: "Untitled, 30 pictures" }).click();
    const pictures = stageOf(page).getByRole("group", { name: "30 pictures" });
    await until("thirty pictures", async () => (await pictures.getByRole("button", { name: "Untitled" }).count()) === 30);
    const columns = async () => new Set(await pictures.getByRole("button").evaluateAll((all) => all.map((one) => Math.round(one.getBoundingClientRect().left)))).size;
    same(await columns(), 2, "columns");
    for (const [width, height] of [[1280, 800], [390, 844]]) {
      await page.setViewportSize({ width, height });
      const [high, upscale] = await Promise.all([page.evaluate(() => document.documentElement.scrollHeight), stageOf(page).getByRole("button", { name: "Upscale" }).boundingBox()]);
      check(high < 3 * height, `the page is ${high} px high at ${width} × ${height}`);
      if (width > 900) check(upscale.y + upscale.height <= height, "the actions are out of sight");
      await fitsWidth(page, `thirty pictures at ${width}`);
    }
    await page.setViewportSize({ width: 1440, height: 900 });
    const size = stageOf(page).getByRole("slider", { name: "Picture size" });
    await size.fill("3");
    await until("four columns", async () => (await columns()) === 4);
    await size.fill("5");
    // Each is looked at, walked through, and the actions are about that one.
    await pictures.getByRole("button").nth(4).click();
    const large = page.getByRole("dialog", { name: "Larger view" });
    await large.getByRole("button", { name: "Next picture" }).click();
    await page.keyboard.press("Escape");
    await stageOf(page).getByText("Picture 6", { exact: true }).waitFor();
    await accessible(page, "thirty pictures");
  });
  await step(page, "found: two to four pictures stand in two columns", async () => {
    for (const count of [2, 3, 4]) {
      await house.done(await ask(house, plain(count), { extra_pnginfo: { workflow: { id: createId(40 + count) } } }));
      await recent(page).getByRole("button", { name: `Untitled, ${count} pictures` }).click();
      const pictures = stageOf(page).getByRole("group", { name: `${count} pictures` }).getByRole("button");
      await until(`${count} pictures`, async () => (await pictures.count()) === count);
      same(new Set(await pictures.evaluateAll((all) => all.map((one) => Math.round(one.getBoundingClientRect().left)))).size, 2, `columns of ${count} pictures`);
    }
  });
}

async function reasons({ page, house }) {
  await step(page, "found: an error says its reason without a fold to open", async () => {
    const folder = join(house.base, "models/checkpoints");
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, "broken.safetensors"), "this is no model");
    await page.getByRole("button", { name: "Refresh the list of models" }).click();
    await page.getByRole("combobox", { name: "Model" }).selectOption("broken.safetensors");
    await promptOf(page).fill("a red apple");
    await createOf(page).click();
    const note = page.getByRole("alert").filter({ hasText: /broken\.safetensors/ }).first();
    await note.waitFor();
    // Seen as it stands, not only after a fold was opened.
    await note.getByText(/broken\.safetensors/).first().waitFor({ state: "visible" });
    const options = await page.getByRole("combobox", { name: "Model" }).locator("option").allInnerTexts();
    await page.getByRole("combobox", { name: "Model" }).selectOption({ label: options.find((label) => /starter/.test(label)) });
  });
}

async function dropped({ page }) {
  await step(page, "found: a dropped model is answered with the folder it belongs in, in every view", async () => {
    for (const view of ["Create", "Apps", "Graph", "Gallery", "Memory"]) {
      await go(page, view);
      await drop(page, page.locator("main"), { name: `${view}.safetensors`, mimeType: "", buffer: Buffer.from("x") });
      await page.getByText(new RegExp(`“${view}\\.safetensors” is a model file\\. Copy it into \\S*models/checkpoints on the computer`)).waitFor();
      for (const close of await page.getByRole("button", { name: "Dismiss" }).all()) await close.click({ timeout: 1000 }).catch(() => undefined);
    }
    await drop(page, page.locator("main"), { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("x") });
    await page.getByText("This view takes no files.").waitFor();
  });
}

async function graphHabits({ page }) {
  const card = (name) => page.getByRole("group", { name, exact: true });
  await step(page, "found: a dropped workflow keeps its name, new nodes lie beside each other, Ctrl+F finds a node", async () => {
    await go(page, "Graph");
    const file = { version: 0.4, last_node_id: 9, links: [], nodes: [{ id: 9, type: "PreviewImage", pos: [0, 0], inputs: [], outputs: [] }] };
    await drop(page, page.locator(".react-flow"), { name: "my cups.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(file)) });
    const crumbs = page.getByRole("navigation", { name: "Where you are" });
    await crumbs.getByText("my cups").waitFor();
    await page.reload();
    await crumbs.getByText("my cups").waitFor();
    const canvas = page.locator(".react-flow__pane");
    // In a corner, where the fitted graph has nothing; the mouse stays there, so each new node is wished at the same place.
    await canvas.click({ position: { x: 60, y: 60 }, force: true });
    for (const name of ["KSampler", "VAE Decode", "Load Image"]) {
      await page.keyboard.press("Tab");
      await page.getByRole("combobox", { name: "Search nodes" }).fill(name.toLowerCase());
      await page.getByRole("option", { name: new RegExp(`^${name}`) }).first().click();
    }
    await card("Load Image, node 12").waitFor();
    const boxes = [];
    for (const name of ["KSampler, node 10", "VAE Decode, node 11", "Load Image, node 12"]) boxes.push(await card(name).boundingBox());
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
      const apart = a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y;
      check(apart, `two new nodes lie on each other: ${JSON.stringify([a, b])}`);
    }));
    await page.keyboard.press("Control+f");
    const find = page.getByRole("dialog", { name: "Find a node" });
    await find.getByRole("textbox", { name: "Title, class or number" }).fill("preview");
    await accessible(page, "the search for a node");
    await page.keyboard.press("Enter");
    await find.waitFor({ state: "detached" });
    await card("Preview Image, node 9").and(page.locator(".selected")).waitFor();
  });
}

async function names({ page }) {
  await step(page, "found: saving as an app proposes a name", async () => {
    await page.getByRole("toolbar", { name: "Graph tools" }).getByRole("button", { name: "File" }).click();
    await page.getByRole("menuitem", { name: "Use as an app", exact: true }).click();
    await page.getByRole("heading", { level: 1, name: "my cups" }).waitFor();
    await page.getByRole("button", { name: "Save as an app" }).click();
    const dialog = page.getByRole("dialog", { name: "Save as an app" });
    await holds(dialog.getByRole("textbox", { name: "Name" }), "my cups");
    await page.keyboard.press("Escape");
    await go(page, "Graph");
    await page.getByRole("toolbar", { name: "Graph tools" }).getByRole("button", { name: "File" }).click();
    await page.getByRole("menuitem", { name: "New text-to-picture workflow", exact: true }).click();
    await page.getByRole("toolbar", { name: "Graph tools" }).getByRole("button", { name: "File" }).click();
    await page.getByRole("menuitem", { name: "Use as an app", exact: true }).click();
    await page.getByRole("button", { name: "Save as an app" }).click();
    await holds(dialog.getByRole("textbox", { name: "Name" }), "A red apple");
    await page.keyboard.press("Escape");
  });
}

async function definitions({ page, house }) {
  await step(page, "found: the description of all nodes is fetched once", async () => {
    const answer = await fetch(`${house.url}/api/object_info`);
    const tag = answer.headers.get("etag");
    check(tag, "the description of the nodes has no tag");
    same((await fetch(`${house.url}/api/object_info`, { headers: { "if-none-match": tag } })).status, 304, "the second answer");
    const loaded = () => page.evaluate(() => performance.getEntriesByType("resource").find((r) => r.name.endsWith("/api/object_info"))?.transferSize);
    await page.reload();
    await until("the page to know its nodes", loaded);
    const size = await loaded();
    check(size < 5_000, `${size} bytes were sent again`);
  });
}

/** The page before the page: it asks for the token, in the same colours. */
async function signIn(browser) {
  const house = await openHouse(["--token", "s3cret-of-the-walk"]);
  try {
    const context = await browser.newContext();
    const page = await context.newPage();
    page.setDefaultTimeout(30_000);
    await step(page, "found: the page that asks for the token looks like the rest", async () => {
      for (const [width, height] of [[1280, 800], [390, 844]]) {
        for (const colorScheme of ["light", "dark"]) {
          await page.setViewportSize({ width, height });
          await page.emulateMedia({ colorScheme });
          await page.goto(house.url);
          const button = page.getByRole("button", { name: "Sign in" });
          const look = await button.evaluate((element) => [getComputedStyle(element).backgroundColor, element.getBoundingClientRect().height]);
          same(look[0], colorScheme === "light" ? "rgb(168, 71, 42)" : "rgb(226, 144, 106)", "colour of the button");
          check(look[1] >= 44, `the button is ${look[1]} px high`);
          await fitsWidth(page, "the page for the token");
          if (process.env.OUT) await page.screenshot({ path: join(process.env.OUT, `token-${width}-${colorScheme}.png`) });
        }
      }
      await page.getByLabel("Token").fill("wrong");
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByText("That is not the token of this server.").waitFor();
      await page.getByLabel("Token").fill("s3cret-of-the-walk");
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByRole("heading", { name: "What would you like to see?" }).waitFor();
    });
    await context.close();
  } finally {
    await house.remove();
  }
}
