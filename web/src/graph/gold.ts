// Test data: the golden workflows and the object_info they were made with, read from the repository's tests.
import { readdirSync, readFileSync } from "node:fs";
import type { ApiPrompt, ObjectInfo } from "../api/types";
import type { Doc } from "./format";

const root = new URL("../../../tests/gold/", import.meta.url);
const json = (path: string): unknown => JSON.parse(readFileSync(new URL(path, root), "utf8"));

export const goldInfo = json("object_info.json") as ObjectInfo;
export const goldNames = readdirSync(new URL("ui2api/", root))
  .filter((f) => f.endsWith(".ui.json"))
  .map((f) => f.slice(0, -8))
  .sort();
export const goldUi = (name: string): Doc => json(`ui2api/${name}.ui.json`) as Doc;
export const goldApi = (name: string): ApiPrompt => json(`ui2api/${name}.api.json`) as ApiPrompt;
