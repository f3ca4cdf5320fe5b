// comfy-ui-client: listens only after the POST was answered, so an early end event would hang it.
import { readFileSync } from "node:fs";
import { randomUUID } from "node:crypto";
import { ComfyUIClient } from "comfy-ui-client";

const prompt = JSON.parse(readFileSync(process.env.FRESCO_WORKFLOW, "utf8"));
const host = `${process.env.FRESCO_HOST}:${process.env.FRESCO_PORT}`;
const client = new ComfyUIClient(host, randomUUID());
await client.connect();

for (const attempt of ["fresh", "cached"]) {
  const images = await client.getImages(prompt);
  const found = Object.values(images).flat();
  if (found.length !== 1) throw new Error(`${attempt}: ${found.length} pictures`);
  const bytes = Buffer.from(await found[0].blob.arrayBuffer());
  if (bytes.subarray(1, 4).toString() !== "PNG") throw new Error(`${attempt}: not a PNG`);
  console.log(attempt, "ok", JSON.stringify(found[0].image), bytes.length, "bytes");
}
await client.disconnect();
process.exit(0);
