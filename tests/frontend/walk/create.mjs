// Create: words, settings, a start picture, a painted area, and going on from a result.
import { accessible, check, drawn, drop, filesOf, go, hasNode, holds, inputs, queued, same, step, until } from "./kit.mjs";

/** More than anybody waits for here: such a job is still running when it is looked at, on any machine. */
const LONG = { steps: 60, side: 512 };

export async function walkCreate({ page, house, model }) {
  const prompt = page.getByRole("textbox", { name: "Prompt" });
  const create = page.getByRole("button", { name: /^Create( another)?$/ });
  const stage = page.getByRole("region", { name: "Pictures" });
  const slider = (name) => page.getByRole("slider", { name });
  const [width, height] = ["Width", "Height"].map((name) => page.getByRole("spinbutton", { name }));
  const press = (count = 1) => queued(page, house, count, () => create.click());
  /** Waits until the stage shows a picture of these words and this size. */
  const shows = (words, ...size) => until(`a picture of ${size.join(" × ")}`, async () => {
    const picture = stage.getByRole("button", { name: words }).first().getByRole("img", { name: words });
    return JSON.stringify(await drawn(picture)) === JSON.stringify(size);
  });
  const put = async (field, value) => {
    await field.fill(String(value));
    await field.blur();
  };

  await step(page, "create: an empty form says what to do", async () => {
    await create.click();
    await page.getByText("Type a few words first").waitFor();
    await page.getByRole("group", { name: "Examples" }).getByRole("button", { name: "a red apple" }).click();
    await holds(prompt, "a red apple");
  });

  await step(page, "create: a long one shows its progress, survives a reload and is cancelled", async () => {
    await page.getByText("Fine tuning").click();
    await slider("Steps").fill(String(LONG.steps));
    for (const side of [width, height]) await put(side, LONG.side);
    const [job] = await press();
    same(inputs(job, "KSampler").steps, LONG.steps, "steps");
    const progress = stage.getByRole("progressbar", { name: "Progress of the picture" });
    await progress.waitFor();
    await stage.getByText(/Step \d+ of 60/).waitFor();
    await stage.getByText(/left|almost done/).waitFor();
    await drawn(stage.getByRole("img", { name: "Growing: a red apple" }));
    await page.reload();
    await stage.getByText(/Step \d+ of 60/).waitFor();
    await holds(prompt, "a red apple");
    await stage.getByRole("button", { name: "Cancel" }).click();
    await until("the job to be cancelled", async () => (await house.job(job.id)).status === "cancelled");
    await progress.waitFor({ state: "detached" });
  });

  const first = await step(page, "create: a picture from words", async () => {
    await page.getByText("Fine tuning").click();
    await slider("Steps").fill("4");
    await page.getByRole("button", { name: "Square" }).click();
    await holds(width, 256);
    const [job] = await press();
    const asked = inputs(job, "KSampler");
    same([asked.steps, asked.denoise], [4, 1], "steps and denoise");
    same(inputs(job, "CheckpointLoaderSimple").ckpt_name, model, "model");
    await shows("a red apple", 256, 256);
    return house.done(job.id);
  });
  const picture = await house.file(filesOf(first)[0]);

  const batch = await step(page, "create: every setting reaches the prompt", async () => {
    await page.getByRole("textbox", { name: "Avoid" }).fill("blue");
    await page.getByRole("button", { name: "Landscape" }).click();
    await holds(width, 320);
    await put(width, 128);
    await put(height, 192);
    await slider("Steps").fill("2");
    await slider("Guidance").fill("5");
    const seed = page.getByRole("spinbutton", { name: "Seed" });
    await put(seed, 12345);
    await page.getByRole("button", { name: "Keep this seed", pressed: true }).waitFor();
    await page.getByRole("combobox", { name: "Sampler" }).fill("dpmpp_2m");
    await page.getByRole("option", { name: "dpmpp_2m", exact: true }).click();
    await page.getByRole("combobox", { name: "Scheduler" }).selectOption("karras");
    await holds(page.getByRole("combobox", { name: "Model" }), model);
    await page.getByRole("button", { name: "One picture more" }).click();
    const jobs = await press(2);
    const { seed: _, ...asked } = inputs(jobs[0], "KSampler");
    same([asked.steps, asked.cfg, asked.sampler_name, asked.scheduler], [2, 5, "dpmpp_2m", "karras"], "settings");
    same(jobs.map((job) => inputs(job, "KSampler").seed), [12345, 12346], "seeds");
    const size = inputs(jobs[0], "EmptyLatentImage");
    same([size.width, size.height], [128, 192], "size");
    check(Object.values(jobs[0].workflow.prompt).some((node) => node.inputs.text === "blue"), "what to avoid is not in the prompt");
    for (const job of jobs) await house.done(job.id);
    await until("both pictures to be shown", async () => (await stage.getByRole("button", { name: "a red apple" }).getByRole("img").count()) === 2);
    await page.getByRole("button", { name: "One picture fewer" }).click();
    await page.getByRole("button", { name: "Roll a new seed" }).click();
    await until("the dice to give another seed", async () => (await seed.inputValue()) !== "12345");
    await page.getByRole("button", { name: "Keep this seed" }).click();
    await page.getByText("A new seed for every picture.").waitFor();
    return jobs;
  });

  await step(page, "create: presets, those that come along and one's own", async () => {
    const presets = page.getByRole("group", { name: "Presets" });
    const own = presets.getByRole("button", { name: /^My presets/ });
    await own.click();
    await page.getByRole("menuitem", { name: "Save these settings…" }).click();
    const dialog = page.getByRole("dialog", { name: "Save these settings" });
    await dialog.getByRole("textbox", { name: "Name" }).fill("tiny");
    await dialog.getByRole("button", { name: "Save" }).click();
    await presets.getByRole("button", { name: "My presets: tiny" }).waitFor();
    await presets.getByRole("button", { name: "Quick" }).click();
    await holds(slider("Steps"), "10");
    await presets.getByRole("button", { name: "Balanced" }).click();
    await holds(slider("Steps"), "20");
    await own.click();
    await page.getByRole("menuitem", { name: "tiny", exact: true }).click();
    await holds(slider("Steps"), "2");
  });

  await step(page, "create: a start picture, chosen and dropped", async () => {
    const start = page.getByRole("region", { name: "Start picture" });
    await page.getByLabel("Start from a picture").setInputFiles({ name: "apple.png", mimeType: "image/png", buffer: picture });
    await start.getByText("Starts from this picture").waitFor();
    await page.getByText("This picture contains the settings it was made with.").waitFor();
    await page.getByRole("button", { name: "Remove the start picture" }).click();
    await drop(page, page.getByLabel("Start from a picture"), { name: "apple.png", mimeType: "image/png", buffer: picture });
    await drawn(start.getByRole("img", { name: "Start picture" }));
    await slider("How much to change").fill("0.5");
    await start.getByText("Clearly, but the layout stays").waitFor();
    const [job] = await press();
    check(hasNode(job, "LoadImage") && hasNode(job, "VAEEncode"), "the start picture is not in the prompt");
    same(inputs(job, "KSampler").denoise, 0.5, "how much to change");
    await house.done(job.id);
  });

  const painted = await step(page, "create: only a painted area changes", async () => {
    await page.getByRole("button", { name: "Paint an area" }).click();
    const dialog = page.getByRole("dialog", { name: "Paint the area to change" });
    const canvas = dialog.getByRole("application");
    await canvas.waitFor();
    await accessible(page, "the painter");
    const box = await canvas.boundingBox();
    const at = (x, y) => page.mouse.move(box.x + box.width * x, box.y + box.height * y, { steps: 4 });
    for (const y of [0.4, 0.5]) {
      await at(0.4, y);
      await page.mouse.down();
      await at(0.6, y);
      await page.mouse.up();
    }
    await dialog.getByRole("button", { name: "Undo" }).click();
    await dialog.getByRole("button", { name: "Redo" }).click();
    await dialog.getByRole("button", { name: "Use this area" }).click();
    await page.getByText("Only the painted area changes").waitFor();
    const [job] = await press();
    check(hasNode(job, "SetLatentNoiseMask") && hasNode(job, "ImageCompositeMasked"), "the area is not in the prompt");
    const done = await house.done(job.id);
    const made = await house.file(filesOf(done)[0]);
    const [corner, middle] = await page.evaluate(async (files) => {
      const [a, b] = await Promise.all(files.map(async (file) => {
        const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(file), (c) => c.charCodeAt(0))]));
        const cx = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
        cx.drawImage(bitmap, 0, 0);
        return cx;
      }));
      const differs = (x, y, w, h) => {
        const [p, q] = [a, b].map((cx) => cx.getImageData(x, y, w, h).data);
        return p.some((v, i) => v !== q[i]);
      };
      return [differs(0, 0, 256, 40), differs(96, 96, 64, 40)];
    }, [picture, made].map((file) => file.toString("base64")));
    check(!corner, "the picture changed outside the painted area");
    check(middle, "the picture did not change inside the painted area");
    await page.getByRole("button", { name: "Remove the start picture" }).click();
    return job;
  });

  await step(page, "create: larger and variations from a result", async () => {
    // The older one of two pictures of one press, viewed larger.
    await page.getByRole("navigation", { name: "Recent pictures" }).getByRole("button", { name: "a red apple, 2 pictures" }).click();
    await stage.getByRole("button", { name: "a red apple" }).first().click();
    const large = page.getByRole("dialog", { name: "Larger view" });
    await large.getByText(/seed 12345 · 128 × 192 · 2 steps/).waitFor();
    await accessible(page, "the larger view");
    const [larger] = await queued(page, house, 1, () => large.getByRole("button", { name: "Upscale" }).click());
    same([inputs(larger, "ImageScale").width, inputs(larger, "ImageScale").height], [256, 384], "size of the larger one");
    await house.done(larger.id);
    await shows("a red apple", 256, 384);
    await page.getByRole("navigation", { name: "Recent pictures" }).getByRole("button", { name: "a red apple, 2 pictures" }).click();
    await stage.getByRole("button", { name: "a red apple" }).first().click();
    await large.getByRole("button", { name: "Variations" }).click();
    const four = await queued(page, house, 4, () => page.getByRole("menuitem", { name: "Four new from the same prompt" }).click());
    same(new Set(four.map((job) => inputs(job, "KSampler").seed)).size, 4, "different seeds");
    for (const job of four) await house.done(job.id);
    await until("four pictures to be shown", async () => (await stage.getByRole("button", { name: "a red apple" }).getByRole("img").count()) === 4);
  });

  await step(page, "create: keys alone", async () => {
    await page.reload();
    await prompt.waitFor();
    await page.keyboard.press("Tab");
    same(await focused(page), "Skip to content", "first stop");
    await page.keyboard.press("Enter");
    await tabTo(page, "Prompt");
    await page.keyboard.press("Control+a");
    await page.keyboard.type("a green leaf");
    // The button is not among the stops while the page does not know the nodes yet, which takes a while on a busy machine.
    await until("Create to be ready", () => page.getByRole("button", { name: "Create", exact: true }).isEnabled());
    await tabTo(page, "Create");
    const [job] = await queued(page, house, 1, () => page.keyboard.press("Enter"));
    check(Object.values(job.workflow.prompt).some((node) => node.inputs.text === "a green leaf"), "the typed words are not in the prompt");
    await house.done(job.id);
    await drawn(stage.getByRole("button", { name: "a green leaf" }).first().getByRole("img", { name: "a green leaf" }));
    await tabTo(page, "a green leaf");
    await page.keyboard.press("Enter");
    const large = page.getByRole("dialog", { name: "Larger view" });
    await large.waitFor();
    await page.keyboard.press("Escape");
    await large.waitFor({ state: "detached" });
    same(await focused(page), "a green leaf", "the focus comes back");
    // Letters lead to the other views.
    await page.keyboard.press("g");
    await page.keyboard.press("m");
    await page.locator('main[data-view="memory"] h1').waitFor();
    await go(page, "Create");
  });
  return { first, batch, painted, picture };
}

/** The essential part on a phone: words, the button, a picture. */
export async function phoneCreate({ page, house }) {
  await step(page, "create on a phone", async () => {
    await page.getByRole("textbox", { name: "Prompt" }).fill("a blue cup");
    const menu = page.getByRole("group", { name: "Presets" }).getByRole("button", { name: /^My presets/ });
    await menu.click();
    await page.getByRole("menuitem", { name: "tiny", exact: true }).click();
    const [job] = await queued(page, house, 1, () => page.getByRole("button", { name: /^Create( another)?$/ }).click());
    await house.done(job.id);
    await drawn(page.getByRole("region", { name: "Pictures" }).getByRole("button", { name: "a blue cup" }).first().getByRole("img"));
  });
}

/** What the focused element is called. */
const focused = (page) => page.evaluate(() => {
  const element = document.activeElement;
  return element?.getAttribute("aria-label") ?? (element?.textContent?.trim() || element?.querySelector("img")?.alt || element?.tagName);
});

async function tabTo(page, name) {
  const met = [];
  for (let i = 0; i < 60; i += 1) {
    await page.keyboard.press("Tab");
    met.push(await focused(page));
    if (met.at(-1) === name) return;
  }
  throw new Error(`Tab does not lead to ${name}, but to ${met.join(", ")}`);
}
