// Favourite results, kept with the user's data on the server.
import { create } from "zustand";
import { userdata } from "../api/client";

const PATH = "fresco/favourites.json";

interface FavouritesFile {
  version: 1;
  jobs: string[];
}

/** The ids in a stored file; none where it is odd. */
export function readFavourites(file: unknown): string[] {
  const jobs = (file as FavouritesFile | null)?.jobs;
  return Array.isArray(jobs) ? [...new Set(jobs.filter((id): id is string => typeof id === "string"))] : [];
}

export function changed(ids: readonly string[], change: readonly string[], on: boolean): string[] {
  const rest = ids.filter((id) => !change.includes(id));
  return on ? [...rest, ...new Set(change)] : rest;
}

interface FavouritesState {
  ids: ReadonlySet<string>;
  loaded: boolean;
  load(): Promise<void>;
  /** Shown at once; taken back and thrown on where it cannot be stored. */
  set(change: readonly string[], on: boolean): Promise<void>;
}

/** Changes go one after another, each on the newest file, so that two tabs do not undo each other. */
let last: Promise<unknown> = Promise.resolve();

export const useFavourites = create<FavouritesState>()((set, get) => ({
  ids: new Set(),
  loaded: false,
  async load() {
    const ids = readFavourites(await userdata.read<unknown>(PATH));
    set({ ids: new Set(ids), loaded: true });
  },
  async set(change, on) {
    const before = get().ids;
    set({ ids: new Set(changed([...before], change, on)) });
    const write = last.then(async () => {
      const now = changed(readFavourites(await userdata.read<unknown>(PATH)), change, on);
      await userdata.write(PATH, { version: 1, jobs: now } satisfies FavouritesFile);
      set({ ids: new Set(now), loaded: true });
    });
    last = write.catch(() => undefined);
    try {
      await write;
    } catch (e) {
      set({ ids: before });
      throw e;
    }
  },
}));
