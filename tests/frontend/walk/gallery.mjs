// Gallery and queue: results with what made them, and jobs that wait; both outlive a reload and the program itself.
import { accessible, check, drawn, go, hasNode, holds, inputs, queued, same, step, until } from "./kit.mjs";

export async function walkGallery({ page, house, made }) {
  const [chosen] = made.batch;
  const tile = page.getByRole("link", { name: /a red apple.*seed 12345\b/ });
  const open = async () => {
    await go(page, "Gallery");
    await page.evaluate((id) => (location.hash = `#/gallery/${id}`), chosen.id);
    await page.getByRole("heading", { level: 1, name: "a red apple" }).waitFor();
  };

  await step(page, "gallery: results tell their words and seed, and are found by them", async () => {
    await go(page, "Gallery");
    await tile.first().waitFor();
    await page.getByRole("searchbox", { name: "Search results" }).fill("green leaf");
    await page.getByText("1 result matches").waitFor();
    await page.getByRole("searchbox", { name: "Search results" }).fill("");
    await tile.first().click();
    await page.getByRole("heading", { level: 1, name: "a red apple" }).waitFor();
    await accessible(page, "a result");
  });

  await step(page, "gallery: a result is used again and downloaded", async () => {
    await open();
    const [again] = await queued(page, house, 1, () => page.getByRole("button", { name: "New seed" }).click());
    check(inputs(again, "KSampler").seed !== 12345, "the new seed is the old one");
    await house.done(again.id);
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
    check(download.suggestedFilename().endsWith(".png"), `${download.suggestedFilename()} is no picture`);
    await page.getByRole("button", { name: "Use in Create" }).click();
    await until("the seed to be in the form", async () => (await page.getByRole("spinbutton", { name: "Seed" }).inputValue()) === "12345");
    await holds(page.getByRole("spinbutton", { name: "Width" }), "128");
    await page.getByRole("button", { name: "Keep this seed", pressed: true }).click();
  });

  await step(page, "gallery: two results are compared", async () => {
    await go(page, "Gallery");
    await page.getByRole("button", { name: "Select", exact: true }).click();
    const marks = page.getByRole("checkbox", { name: "Select a red apple" });
    await marks.nth(0).check();
    await marks.nth(1).check();
    const bar = page.getByRole("toolbar", { name: "Selected results" });
    await bar.getByText("2 selected").waitFor();
    await bar.getByRole("button", { name: "Compare" }).click();
    await drawn(page.getByRole("img", { name: "Picture A" }));
    await drawn(page.getByRole("img", { name: "Picture B" }));
    await page.getByRole("region", { name: "What differs" }).getByRole("rowheader", { name: "Seed" }).waitFor();
    await page.getByRole("slider", { name: "How much of A is shown" }).fill("80");
    await accessible(page, "a comparison");
    await page.getByRole("link", { name: "‹ All results" }).click();
    await page.getByRole("button", { name: "Done selecting" }).click();
  });

  await step(page, "gallery: a result is deleted with its file", async () => {
    await open();
    await page.getByRole("button", { name: "Delete" }).click();
    const dialog = page.getByRole("dialog", { name: "Delete this result?" });
    await accessible(page, "a question");
    await dialog.getByRole("button", { name: "Delete" }).click();
    await until("the job to be gone", async () => (await fetch(`${house.url}/api/jobs/${chosen.id}`)).status === 404);
    await dialog.waitFor({ state: "hidden" });
  });
}

export async function walkQueue({ page, house, watch, made }) {
  const panel = page.getByRole("region", { name: "Queue" });
  const names = async () => (await panel.getByRole("listitem").getByRole("link").allInnerTexts()).map((text) => text.split("\n")[0].trim());
  const standsAs = (list) => until(`the queue to be ${list.join(", ")}`, async () => JSON.stringify(await names()) === JSON.stringify(list));
  const held = panel.getByRole("button", { name: "Release first", pressed: true });
  const jobs = {};

  await step(page, "queue: paused, filled, put in another order, one on hold", async () => {
    await go(page, "Gallery");
    await panel.getByRole("button", { name: "Pause" }).click();
    await panel.getByText("Nothing starts until you resume.").waitFor();
    await go(page, "Create");
    for (const words of ["first", "second", "third"]) {
      await page.getByRole("textbox", { name: "Prompt" }).fill(words);
      [jobs[words]] = await queued(page, house, 1, () => page.getByRole("button", { name: /^Create( another)?$/ }).click());
    }
    check(!hasNode(jobs.first, "LoadImage"), "a start picture is left over");
    await go(page, "Gallery");
    await standsAs(["first", "second", "third"]);
    await panel.getByRole("button", { name: "More for third" }).click();
    await page.getByRole("menuitem", { name: "Move to the top" }).click();
    await standsAs(["third", "first", "second"]);
    await panel.getByRole("button", { name: /^Move second: place 3/ }).press("ArrowUp");
    await standsAs(["third", "second", "first"]);
    await panel.getByRole("button", { name: "Hold first" }).click();
    await held.waitFor();
    await accessible(page, "the queue");
  });

  await step(page, "queue: it survives a reload and a restart of the program", async () => {
    const stands = async () => {
      await standsAs(["third", "second", "first"]);
      await held.waitFor();
      await panel.getByRole("button", { name: "Resume" }).waitFor();
      await page.getByRole("link", { name: /a red apple/ }).first().waitFor();
    };
    await page.reload();
    await stands();
    watch.away = true;
    await house.stop();
    await page.getByText("No connection to Fresco.").waitFor();
    await house.start();
    await page.getByText("No connection to Fresco.").waitFor({ state: "detached" });
    watch.away = false;
    await stands();
    await page.reload();
    await stands();
    const job = await house.job(made.first.id);
    same(job.status, "completed", "an old job after the restart");
  });

  await step(page, "queue: cancelled, resumed, released", async () => {
    await panel.getByRole("button", { name: "Cancel second" }).click();
    await standsAs(["third", "first"]);
    await panel.getByRole("button", { name: "Resume" }).click();
    await house.done(jobs.third.id);
    await standsAs(["first"]);
    same((await house.job(jobs.first.id)).status, "pending", "the job on hold");
    same((await house.job(jobs.second.id)).status, "cancelled", "the cancelled job");
    await held.click();
    await house.done(jobs.first.id);
    await panel.getByText("The queue is empty.").waitFor();
  });
}

/** The essential part on a phone: results and queue behind their tabs, one result in full. */
export async function phoneGallery({ page }) {
  await step(page, "gallery on a phone", async () => {
    await go(page, "Gallery");
    const part = page.getByRole("group", { name: "Part of the gallery" });
    await part.getByRole("button", { name: /^Queue/ }).click();
    await page.getByText("The queue is empty.").waitFor();
    await part.getByRole("button", { name: "Results" }).click();
    await page.getByRole("link", { name: /a blue cup/ }).first().click();
    await page.getByRole("heading", { level: 1, name: "a blue cup" }).waitFor();
    await accessible(page, "a result on a phone");
    await page.getByRole("link", { name: "‹ All results" }).click();
  });
}
