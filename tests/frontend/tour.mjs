// Takes the pictures of docs/tour.md with the program and its starter model.
// From the environment: FRESCO_BIN (the program), CHROMIUM.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { drawn, drop, filesOf, go, openBrowser, openHouse, openPage, queued, starterModel } from "./walk/kit.mjs";
import { smallPng } from "./walk/palette.mjs";

const FOLDER = fileURLToPath(new URL("../../docs/tour/", import.meta.url));
const WIDE = { width: 1200, height: 760 };
/** Words and seed of each picture, in the order they are made; the last one is on the stage. */
const PICTURES = [
  ["a rocket in space", 4], ["a fox in the snow", 2], ["a green frog on a red mushroom", 5], ["a lion wearing a crown", 3], ["a pink house with a red door", 6], ["a red apple", 1],
];

const house = await openHouse();
const browser = await openBrowser();
try {
  await starterModel(house);
  mkdirSync(FOLDER, { recursive: true });
  const wide = await openPage(browser, house, "wide", { viewport: WIDE, colorScheme: "light" });
  const apple = await makePictures(wide.page);
  await take(wide.page, "create-wide");

  await go(wide.page, "Apps");
  await drop(wide.page, wide.page.getByLabel(/^Drop a workflow/), { name: "red apple.png", mimeType: "image/png", buffer: await house.file(filesOf(apple)[0]) });
  await wide.page.locator("form").getByRole("textbox", { name: "Prompt", exact: true }).fill("a green apple");
  const [run] = await queued(wide.page, house, 1, () => wide.page.getByRole("button", { name: "Run", exact: true }).click());
  await house.done(run.id);
  await drawn(wide.page.getByRole("region", { name: "Result" }).first().getByRole("img"));
  await take(wide.page, "apps");

  await go(wide.page, "Graph");
  await wide.page.getByRole("toolbar", { name: "Graph tools" }).getByRole("button", { name: "File" }).click();
  await wide.page.getByRole("menuitem", { name: "New text-to-picture workflow" }).click();
  await wide.page.getByRole("group", { name: "What to draw, node 2" }).getByRole("textbox").fill("a yellow flower");
  const [graph] = await queued(wide.page, house, 1, () => wide.page.getByRole("button", { name: "Run" }).click());
  await house.done(graph.id);
  await drawn(wide.page.getByRole("group", { name: "Save Image, node 7" }).getByRole("img", { name: /^Picture/ }));
  await take(wide.page, "graph");

  await go(wide.page, "Gallery");
  await wide.page.getByRole("link", { name: /a lion wearing a crown/ }).waitFor();
  await take(wide.page, "gallery");
  await go(wide.page, "Memory");
  await wide.page.getByRole("article").first().waitFor();
  await take(wide.page, "memory");
  wide.watch.judge();

  const phone = await openPage(browser, house, "phone", { hasTouch: true, isMobile: true, colorScheme: "light" });
  await go(phone.page, "Create");
  await phone.page.getByRole("textbox", { name: "Prompt" }).fill("a red apple");
  await phone.page.getByRole("navigation", { name: "Recent pictures" }).getByRole("button", { name: "a red apple" }).last().click();
  await drawn(phone.page.getByRole("region", { name: "Pictures" }).getByRole("button", { name: "a red apple" }).first().getByRole("img"));
  await phone.page.evaluate(() => scrollTo(0, 0));
  await take(phone.page, "create-phone");
  phone.watch.judge();
} finally {
  await browser.close();
  await house.remove();
}

/** Six pictures; gives the job of the last. */
async function makePictures(page) {
  let job;
  for (const [words, seed] of PICTURES) {
    await page.getByRole("textbox", { name: "Prompt" }).fill(words);
    await page.getByRole("spinbutton", { name: "Seed" }).fill(String(seed));
    [job] = await queued(page, house, 1, () => page.getByRole("button", { name: /^Create( another)?$/ }).click());
    await house.done(job.id);
  }
  await drawn(page.getByRole("region", { name: "Pictures" }).getByRole("button", { name: "a red apple" }).first().getByRole("img"));
  await page.evaluate(() => scrollTo(0, 0));
  return house.job(job.id);
}

/** The page as it stands, without messages, once its pictures are loaded. */
async function take(page, name) {
  for (const close of await page.getByRole("button", { name: "Dismiss" }).all()) await close.click({ timeout: 2000 }).catch(() => undefined);
  await page.evaluate(() => document.activeElement?.blur());
  await page.mouse.move(2, 2);
  await page.waitForLoadState("networkidle");
  const png = await page.screenshot();
  const { width, height, data } = await page.evaluate(async (base64) => {
    const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))]));
    const cx = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    cx.drawImage(bitmap, 0, 0);
    const { data } = cx.getImageData(0, 0, bitmap.width, bitmap.height);
    let text = "";
    for (let i = 0; i < data.length; i += 32_768) text += String.fromCharCode(...data.subarray(i, i + 32_768));
    return { width: bitmap.width, height: bitmap.height, data: btoa(text) };
  }, png.toString("base64"));
  const small = smallPng(width, height, Buffer.from(data, "base64"));
  writeFileSync(join(FOLDER, `${name}.png`), small);
  console.log(`tour: ${name}.png, ${Math.round(small.length / 1024)} kB`);
}
