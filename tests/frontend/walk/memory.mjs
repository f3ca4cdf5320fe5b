// Memory: what is loaded and where, how long it stays, and giving it back.
import { check, go, holds, same, step, until } from "./kit.mjs";

export async function walkMemory({ page, house, model }) {
  const part = page.getByRole("article", { name: `Picture model of ${model}` });
  const stays = part.getByRole("combobox", { name: /^How long it stays/ });
  const known = async () => (await house.json("/api/memory")).models.find((m) => m.component === "diffusion");

  await step(page, "memory: devices, the loaded model, its size and policy", async () => {
    await go(page, "Memory");
    const devices = page.getByRole("region", { name: "Devices" });
    await devices.getByRole("heading", { name: "Main memory" }).waitFor();
    await devices.getByText("Free", { exact: true }).first().waitFor();
    await part.getByText(/^[\d.]+ [kMG]B$/).first().waitFor();
    await holds(stays, "auto");
  });

  await step(page, "memory: a model is kept, and let go again", async () => {
    await stays.selectOption("keep");
    await part.getByText("It is kept, because you chose so here.").waitFor();
    same((await known()).effective_policy, "keep", "policy of the program");
    await stays.selectOption("auto");
    await part.getByText("It stays until its place is needed.").waitFor();
    same((await known()).effective_policy, "auto", "policy of the program");
  });

  await step(page, "memory: models are unloaded, memory is given back", async () => {
    await page.getByRole("button", { name: "Unload models" }).click();
    await page.getByRole("status").filter({ hasText: /moved to main memory|No model was on a GPU/ }).first().waitFor();
    await page.getByRole("button", { name: "Free model and node cache" }).click();
    await page.getByRole("status").filter({ hasText: /^Freed .* and the results of nodes/ }).first().waitFor();
    await page.getByRole("heading", { name: "No model is loaded" }).waitFor();
    await until("the program to have no model", async () => {
      const { models } = await house.json("/api/memory");
      return models.every((m) => m.host_bytes === 0 && Object.values(m.residency).every((n) => n === 0));
    });
    check(await page.getByRole("button", { name: "Unload models" }).isDisabled(), "nothing can be unloaded twice");
  });
}
