// The user's apps as files: listed, read, saved, renamed, copied and deleted.
import { ApiError, sendJson, userdata } from "../api/client";
import { type AppFile, appFolder, appPath, freeName, readApp } from "./appFile";

export interface Listed {
  name: string;
  /** Null where the file cannot be read; `trouble` says why. */
  app: AppFile | null;
  trouble: string;
}

/** The names of all apps, in the order of the alphabet. */
export async function appNames(): Promise<string[]> {
  const files = await userdata.list(appFolder);
  return files
    .filter((file) => file.endsWith(".json") && !file.includes("/"))
    .map((file) => file.slice(0, -5))
    .sort((a, b) => a.localeCompare(b));
}

/** An app, or null where there is none of that name. */
export async function loadApp(name: string): Promise<AppFile | null> {
  const data = await userdata.read<unknown>(appPath(name));
  // The file's name is what counts: somebody may have copied the file.
  return data === null ? null : { ...readApp(data, name), name };
}

export async function listApps(): Promise<Listed[]> {
  const names = await appNames();
  return Promise.all(
    names.map(async (name) => {
      try {
        return { name, app: await loadApp(name), trouble: "" };
      } catch (e) {
        return { name, app: null, trouble: e instanceof Error ? e.message : String(e) };
      }
    }),
  );
}

export async function saveApp(app: AppFile): Promise<void> {
  await userdata.write(appPath(app.name), app);
}

/** Saves under a name that is still free; answers that name. */
export async function addApp(app: AppFile): Promise<string> {
  const name = freeName(app.name, await appNames());
  await saveApp({ ...app, name });
  return name;
}

export async function renameApp(from: string, to: string): Promise<void> {
  const same = from.toLowerCase() === to.toLowerCase();
  try {
    // Where only the case differs, the new name may be the old file on some disks.
    await sendJson("POST", `/api/userdata/${encodeURIComponent(appPath(from))}/move/${encodeURIComponent(appPath(to))}?overwrite=${same}`);
  } catch (e) {
    if (e instanceof ApiError && e.status === 409) throw new Error(`An app named "${to}" already exists.`);
    if (e instanceof ApiError && e.status === 404) throw new Error(`The app "${from}" no longer exists.`);
    throw e;
  }
}

/** Deletes an app; answers what brings it back, if it could be read. */
export async function takeAway(name: string): Promise<(() => Promise<void>) | null> {
  const data = await userdata.read<unknown>(appPath(name)).catch(() => null);
  await deleteApp(name);
  return data === null ? null : () => userdata.write(appPath(name), data);
}

async function deleteApp(name: string): Promise<void> {
  try {
    await userdata.remove(appPath(name));
  } catch (e) {
    if (!(e instanceof ApiError && e.status === 404)) throw e;
  }
}

/** Workflows the graph editor saved, by path below `workflows/`. */
export async function savedWorkflows(): Promise<string[]> {
  const files = await userdata.list("workflows");
  return files.filter((file) => file.endsWith(".json")).sort((a, b) => a.localeCompare(b));
}

/** Gives the app to the browser as a file. */
export function download(app: AppFile): void {
  const url = URL.createObjectURL(new Blob([JSON.stringify(app, null, 1)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${app.name}.fresco-app.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
