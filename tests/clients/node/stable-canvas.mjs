// @stable-canvas/comfyui-client over its WebSocket, then once more by polling.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import WebSocket from "ws";

const require = createRequire(import.meta.url);
const { Client } = require("@stable-canvas/comfyui-client");

const prompt = JSON.parse(readFileSync(process.env.FRESCO_WORKFLOW, "utf8"));
const host = `${process.env.FRESCO_HOST}:${process.env.FRESCO_PORT}`;
const client = new Client({ api_host: host, WebSocket, fetch });
await client.connect();

for (const attempt of ["fresh", "cached"]) {
  const output = await client.enqueue(prompt);
  if (output.images.length !== 1) {
    throw new Error(`${attempt}: ${JSON.stringify(output)}`);
  }
  console.log(attempt, "ok", JSON.stringify(output.images[0]));
}
const stats = await client.getSystemStats();
if (!stats.system.comfyui_version) throw new Error("no version in system stats");
client.close();
process.exit(0);
