// Memory: what is loaded and where, how long it stays, and giving it back.
import { accessible, go, holds, same, step, until } from "./kit.mjs";

export async function walkMemory({ page, house, model }) {
  const row = page.getByRole("article", { name: model, exact: true });
  const stays = row.getByRole("combobox", { name: /^How long it stays/ });
  const policies = async () => [...new Set((await house.json("/api/memory")).models.filter((m) => m.host_bytes > 0).map((m) => m.effective_policy))];

  await step(page, "memory: devices, the loaded model, its size and policy", async () => {
    await go(page, "Memory");
    const devices = page.getByRole("region", { name: "Devices" });
    await devices.getByRole("heading", { name: "Main memory" }).waitFor();
    await devices.getByText("Free", { exact: true }).first().waitFor();
    await row.getByText(/^[\d.]+ [kMG]B$/).first().waitFor();
    await holds(stays, "auto");
    // One row for the model; what it consists of is folded.
    same(await page.getByRole("article").count(), 1, "rows for one model");
    await page.getByText("Parts", { exact: true }).click();
    await page.getByRole("article", { name: `Picture model of ${model}` }).waitFor();
    await accessible(page, "a model with its parts");
    await page.getByText("Parts", { exact: true }).click();
    await page.getByText("Recent activity", { exact: true }).first().waitFor();
  });

  await step(page, "memory: a model is kept, and let go again", async () => {
    await stays.selectOption("keep");
    await row.getByText("It stays loaded because you chose that here.").waitFor();
    same(await policies(), ["keep"], "policies of the parts");
    await stays.selectOption("auto");
    await row.getByText("It stays until the space is needed.").waitFor();
    same(await policies(), ["auto"], "policies of the parts");
  });

  await step(page, "memory: memory is given back; without a GPU there is nothing to unload from", async () => {
    const { devices } = await house.json("/api/memory");
    const unload = page.getByRole("button", { name: "Unload models" });
    same(await unload.count(), devices.some((d) => d.type !== "cpu") ? 1 : 0, "buttons that unload models from GPUs");
    await page.getByRole("button", { name: "Free model and node cache" }).click();
    await page.getByRole("status").filter({ hasText: /^Freed .* and the node results/ }).first().waitFor();
    await page.getByRole("heading", { name: "No model is loaded" }).waitFor();
    await until("the program to have no model", async () => {
      const { models } = await house.json("/api/memory");
      return models.every((m) => m.host_bytes === 0 && Object.values(m.residency).every((n) => n === 0));
    });
  });
}
