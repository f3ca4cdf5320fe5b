// Our page in a headless browser, walked as a user would, against the program with its starter model: everything on a wide
// screen, the essential parts on a phone. It must ask nobody else for anything, and say nothing wrong.
// From the environment: FRESCO_BIN (the program), CHROMIUM, OUT (a folder for pictures). Arguments: parts to walk, all if none.
import { walkApps } from "./walk/apps.mjs";
import { phoneCreate, walkCreate } from "./walk/create.mjs";
import { phoneGallery, walkGallery, walkQueue } from "./walk/gallery.mjs";
import { walkGraph } from "./walk/graph.mjs";
import { openBrowser, openHouse, openPage, starterModel } from "./walk/kit.mjs";
import { walkFound } from "./walk/found.mjs";
import { walkLooks } from "./walk/looks.mjs";
import { walkMedia } from "./walk/media.mjs";
import { walkMemory } from "./walk/memory.mjs";
import { walkTruth } from "./walk/truth.mjs";

const start = Date.now();
const parts = { apps: walkApps, graph: walkGraph, gallery: walkGallery, queue: walkQueue, media: walkMedia, memory: walkMemory };
const wanted = process.argv.slice(2);
const has = (part) => wanted.length === 0 || wanted.includes(part);

const browser = await openBrowser();
if (has("truth")) await walkTruth(browser).catch(async (error) => {
  await browser.close();
  throw error;
});
if (has("found")) await walkFound(browser).catch(async (error) => {
  await browser.close();
  throw error;
});
if (wanted.length > 0 && wanted.every((part) => ["truth", "found"].includes(part))) {
  await browser.close();
  process.exit();
}
const house = await openHouse();
try {
  const model = await starterModel(house);
  const wide = await openPage(browser, house, "wide");
  const at = { ...wide, house, model };
  // The other parts look at what was made here.
  const made = await walkCreate(at);
  for (const [name, walk] of Object.entries(parts)) if (has(name)) await walk({ ...at, made });
  if (has("looks")) await walkLooks(at, "wide");
  wide.watch.judge();
  await wide.close();

  if (has("phone")) {
    const phone = await openPage(browser, house, "phone", { hasTouch: true, isMobile: true });
    await phoneCreate({ ...phone, house });
    await phoneGallery(phone);
    await walkLooks(phone, "phone");
    phone.watch.judge();
    await phone.close();
  }
  console.log(`page: walked in ${Math.round((Date.now() - start) / 1000)} s`);
} finally {
  await browser.close();
  await house.remove();
}
