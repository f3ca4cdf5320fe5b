// @saintno/comfyui-sdk with its prompt builder. Its run() promise can stay open after very short jobs (it does so on the
// reference too), so the finished callback decides.
import { readFileSync } from "node:fs";
import { CallWrapper, ComfyApi, PromptBuilder } from "@saintno/comfyui-sdk";

const prompt = JSON.parse(readFileSync(process.env.FRESCO_WORKFLOW, "utf8"));
const api = await new ComfyApi(process.env.FRESCO_URL, `fresco-${process.pid}`).init().waitForReady();

for (const attempt of ["fresh", "cached"]) {
  const builder = new PromptBuilder(structuredClone(prompt), ["colour"], ["images"])
    .setInputNode("colour", "1.inputs.color")
    .setOutputNode("images", "3");
  const images = await new Promise((resolve, reject) => {
    new CallWrapper(api, builder)
      .onFinished((data) => resolve(data.images?.images))
      .onFailed((error) => reject(error))
      .run()
      .catch(reject);
  });
  if (images?.length !== 1) throw new Error(`${attempt}: ${JSON.stringify(images)}`);
  const blob = await api.getImage(images[0]);
  const bytes = Buffer.from(await blob.arrayBuffer());
  if (bytes.subarray(1, 4).toString() !== "PNG") throw new Error(`${attempt}: not a PNG`);
  console.log(attempt, "ok", JSON.stringify(images[0]), bytes.length, "bytes");
}
process.exit(0);
