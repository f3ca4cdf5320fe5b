// Graph: nodes are added, connected, changed, run, kept, and gathered into a sub-graph.
import { accessible, check, dragBetween, drawn, go, holds, inputs, queued, same, step, until } from "./kit.mjs";

export async function walkGraph({ page, house, watch }) {
  const card = (name) => page.getByRole("group", { name, exact: true });
  const link = (from, to) => page.getByRole("group", { name: new RegExp(`^Link of \\w+ from node ${from} to node ${to}$`) });
  const value = (node, name) => card(node).getByRole("textbox", { name, exact: true });
  const tool = (name) => page.getByRole("button", { name });
  const put = async (field, text) => {
    await field.fill(text);
    await field.blur();
  };
  const sized = async (side) => {
    for (const name of ["width", "height"]) await put(value("Empty Latent Image, node 4", name), side);
  };
  const menu = async (button, item) => {
    await page.getByRole("toolbar", { name: "Graph tools" }).getByRole("button", { name: button }).click();
    await page.getByRole("menuitem", { name: item, exact: true }).click();
  };

  await step(page, "graph: values are changed, undone and done again", async () => {
    await go(page, "Graph");
    await menu("File", "New text-to-picture workflow");
    await put(value("KSampler, node 5", "steps"), "60");
    await tool("Undo (Ctrl+Z)").click();
    await holds(value("KSampler, node 5", "steps"), "20");
    await tool("Redo (Ctrl+Y)").click();
    await holds(value("KSampler, node 5", "steps"), "60");
    await value("What to draw, node 2", "text").fill("a graph apple");
    await sized("512");
  });

  const add = async (name) => {
    await tool("Add a node (Tab)").click();
    await page.getByRole("combobox", { name: "Search nodes" }).fill(name.toLowerCase());
    await page.getByRole("option", { name: new RegExp(`^${name}`) }).first().click();
  };

  await step(page, "graph: a node is found by its name and connected; what does not fit is refused", async () => {
    await add("Preview Image");
    await card("Preview Image, node 8").waitFor();
    await tool("Arrange from left to right").click();
    const into = page.getByRole("img", { name: "Input images of node Preview Image, IMAGE" });
    await until("the canvas to stand still", async () => {
      const before = await into.boundingBox();
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      return JSON.stringify(before) === JSON.stringify(await into.boundingBox());
    });
    await dragBetween(page, page.getByRole("img", { name: "Output LATENT of node Empty Latent Image, LATENT" }), into);
    same(await link(4, 8).count(), 0, "links that do not fit");
    await dragBetween(page, page.getByRole("img", { name: "Output IMAGE of node VAE Decode, IMAGE" }), into);
    await link(6, 8).waitFor({ state: "attached" });
  });

  await step(page, "graph: nodes are copied and pasted", async () => {
    await card("Preview Image, node 8").getByText("Preview Image", { exact: true }).click();
    await page.keyboard.press("Control+c");
    await page.keyboard.press("Control+v");
    await card("Preview Image, node 9").waitFor();
    await tool("Undo (Ctrl+Z)").click();
    await card("Preview Image, node 9").waitFor({ state: "detached" });
  });

  await step(page, "graph: a run shows its progress and its preview on the node, and is cancelled", async () => {
    const [job] = await queued(page, house, 1, () => tool("Run").click());
    same(inputs(job, "KSampler").steps, 60, "steps");
    await page.getByRole("progressbar", { name: "Progress of KSampler" }).waitFor();
    await drawn(card("KSampler, node 5").getByRole("img", { name: "The picture so far" }));
    await tool("Cancel the running job").click();
    await until("the job to be cancelled", async () => (await house.job(job.id)).status === "cancelled");
    await put(value("KSampler, node 5", "steps"), "2");
    await sized("128");
  });

  await step(page, "graph: an error is shown on its node", async () => {
    await card("VAE Decode, node 6").getByText("VAE Decode", { exact: true }).click();
    await page.keyboard.press("i");
    const panel = page.getByRole("complementary", { name: "Values of VAE Decode" });
    await panel.getByRole("button", { name: /^samples: from KSampler/ }).click();
    await page.getByRole("option", { name: "nothing" }).click();
    await link(5, 6).waitFor({ state: "detached" });
    watch.allow("400 /api/prompt");
    await tool("Run").click();
    await card("VAE Decode, node 6").getByRole("alert").filter({ hasText: "samples" }).waitFor();
    await accessible(page, "the graph with an error");
    await tool("Undo (Ctrl+Z)").click();
    await link(5, 6).waitFor({ state: "attached" });
    await panel.getByRole("button", { name: "Close the values" }).click();
  });

  await step(page, "graph: nodes are gathered into a sub-graph, which opens and runs", async () => {
    await card("KSampler, node 5").getByText("KSampler", { exact: true }).click();
    await card("VAE Decode, node 6").getByText("VAE Decode", { exact: true }).click({ modifiers: ["Control"] });
    await menu("Selection and view", "Make a sub-graph");
    await card("KSampler, node 5").waitFor({ state: "detached" });
    await page.getByRole("button", { name: /^Open (?!a)/ }).click();
    await card("VAE Decode, node 6").waitFor();
    await page.getByRole("group", { name: "Sub-graph inputs" }).waitFor();
    await accessible(page, "a sub-graph");
    await tool("Leave the sub-graph").click();
    await card("Save Image, node 7").waitFor();
    // A part that cannot run is left out and told on its node; the rest runs.
    await add("Save Image");
    const [job] = await queued(page, house, 1, () => tool("Run").click());
    same(inputs(job, "KSampler").steps, 2, "steps inside the sub-graph");
    await page.getByRole("group", { name: /^Save Image, node (?!7$)/ }).getByRole("alert").filter({ hasText: "images" }).waitFor();
    await house.done(job.id);
    await drawn(card("Save Image, node 7").getByRole("img", { name: /^Picture Fresco/ }));
    await drawn(card("Preview Image, node 8").getByRole("img", { name: /^Picture/ }));
  });

  await step(page, "graph: saved as ComfyUI saves, and opened again", async () => {
    await tool("Save (Ctrl+S)").click();
    const dialog = page.getByRole("dialog", { name: "Save the workflow" });
    await dialog.getByRole("textbox", { name: "Name" }).fill("walked");
    await dialog.getByRole("button", { name: "Save" }).click();
    await dialog.waitFor({ state: "detached" });
    const kept = await house.json(`/api/userdata/${encodeURIComponent("workflows/walked.json")}`);
    check(kept.nodes.some((node) => node.type === "PreviewImage" && Array.isArray(node.pos)), "the file has no nodes in the editor's format");
    check(kept.links.every((entry) => Array.isArray(entry) && entry.length === 6), "the file's links are not the editor's");
    same(kept.definitions.subgraphs.length, 1, "sub-graphs in the file");
    await page.reload();
    await page.getByRole("navigation", { name: "Where you are" }).getByText("walked").waitFor();
    await holds(value("What to draw, node 2", "text"), "a graph apple");
    await menu("File", "New workflow");
    await card("Save Image, node 7").waitFor({ state: "detached" });
    await menu("File", "Open…");
    await page.getByRole("dialog", { name: "Open a workflow" }).getByRole("button", { name: "walked", exact: true }).click();
    await card("Save Image, node 7").waitFor();
  });
}
