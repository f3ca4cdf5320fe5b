// Apps: a workflow from a picture or a file becomes a form that is changed, run and kept.
import { accessible, check, drawn, drop, go, holds, inputs, queued, same, step } from "./kit.mjs";

export async function walkApps({ page, house, model, made }) {
  const field = (role, name) => page.locator("form").getByRole(role, { name, exact: true });
  const zone = page.getByLabel(/^Drop a workflow/);
  const workflow = made.first.workflow.extra_data.extra_pnginfo.workflow;
  const file = (value, name) => ({ name, mimeType: "application/json", buffer: Buffer.from(JSON.stringify(value)) });

  await step(page, "apps: a picture made here becomes a form", async () => {
    await go(page, "Apps");
    await drop(page, zone, { name: "apple.png", mimeType: "image/png", buffer: made.picture });
    await page.getByRole("heading", { level: 1, name: "apple" }).waitFor();
    await holds(field("textbox", "Prompt"), "a red apple");
    await accessible(page, "an app");
  });

  await step(page, "apps: fields are chosen, changed and run", async () => {
    await page.getByRole("button", { name: "Edit form" }).click();
    await page.getByRole("button", { name: "Do not show Avoid" }).click();
    await page.getByText("Sampler", { exact: true }).click();
    await page.getByRole("button", { name: "Show Steps of Sampler" }).click();
    await accessible(page, "the editor of a form");
    await page.getByRole("button", { name: "Done" }).click();
    check(!(await field("textbox", "Avoid").isVisible()), "a field that was hidden is still shown");
    await field("spinbutton", "Steps").fill("2");
    await field("textbox", "Prompt").fill("a yellow cup");
    await field("spinbutton", "Size: width").fill("128");
    await field("spinbutton", "Size: height").fill("128");
    const [job] = await queued(page, house, 1, () => page.getByRole("button", { name: "Run", exact: true }).click());
    same(inputs(job, "KSampler").steps, 2, "steps");
    check(Object.values(job.workflow.prompt).some((node) => node.inputs.text === "a yellow cup"), "the changed words are not in the prompt");
    await house.done(job.id);
    same(await drawn(page.getByRole("region", { name: "Result" }).first().getByRole("img")), [128, 128], "size of the result");
  });

  await step(page, "apps: saved under a name and still there after a reload", async () => {
    await page.getByRole("button", { name: "Save as an app" }).click();
    const dialog = page.getByRole("dialog", { name: "Save as an app" });
    await dialog.getByRole("textbox", { name: "Name" }).fill("Cups");
    await dialog.getByRole("button", { name: "Save" }).click();
    await page.getByRole("heading", { level: 1, name: "Cups" }).waitFor();
    await page.reload();
    await page.getByRole("heading", { level: 1, name: "Cups" }).waitFor();
    await holds(field("textbox", "Prompt"), "a yellow cup");
    await holds(field("spinbutton", "Steps"), "2");
    await page.getByRole("button", { name: "All apps" }).click();
    await page.getByRole("link", { name: /^Cups/ }).waitFor();
  });

  await step(page, "apps: an editor's file becomes a form", async () => {
    await zone.setInputFiles(file(workflow, "from the editor.json"));
    await page.getByRole("heading", { level: 1, name: "from the editor" }).waitFor();
    await holds(field("textbox", "Prompt"), "a red apple");
    await page.getByRole("button", { name: "All apps" }).click();
  });

  await step(page, "apps: what is missing is named, and what would do", async () => {
    const lacking = JSON.parse(JSON.stringify(workflow).replaceAll(model, "nowhere.safetensors"));
    lacking.nodes.find((node) => node.type === "VAEDecode").type = "FancyDecode";
    await drop(page, zone, file(lacking, "lacking.json"));
    const missing = page.getByRole("region", { name: "What is missing" });
    await missing.getByText("FancyDecode").first().waitFor();
    const instead = missing.getByRole("combobox", { name: /nowhere\.safetensors/ });
    await missing.getByText("It belongs in the folder models/checkpoints.").waitFor();
    check(await page.getByRole("button", { name: "Run", exact: true }).isDisabled(), "a workflow that cannot run can be run");
    await accessible(page, "an app that lacks something");
    await instead.selectOption(model);
    await instead.waitFor({ state: "detached" });
    await missing.getByText("FancyDecode").first().waitFor();
    await page.getByRole("button", { name: "All apps" }).click();
  });
}
