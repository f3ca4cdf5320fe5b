// What this browser remembers: the theme, and the last values of forms.
import { create } from "zustand";

export type Theme = "auto" | "light" | "dark";

const PREFIX = "fresco.";

/** A remembered value, or `fallback` where there is none or it cannot be read. */
export function remembered<T>(key: string, fallback: T): T {
  try {
    const text = localStorage.getItem(PREFIX + key);
    return text === null ? fallback : (JSON.parse(text) as T);
  } catch {
    return fallback;
  }
}

/** Remembers a value for the next visit; `undefined` forgets it. */
export function remember(key: string, value: unknown): void {
  try {
    if (value === undefined) localStorage.removeItem(PREFIX + key);
    else localStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    // Storage may be full or forbidden; the page works without it.
  }
}

interface SettingsState {
  theme: Theme;
  setTheme(theme: Theme): void;
}

function firstTheme(): Theme {
  const theme = remembered<unknown>("theme", "auto");
  return theme === "light" || theme === "dark" ? theme : "auto";
}

/** The page's ground in both themes, as tokens.css has it. */
const GROUND = { light: "#f7f3ec", dark: "#181513" };

/** Puts the theme onto the page, and its ground onto the browser's own bars. */
export function showTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme;
  for (const meta of document.querySelectorAll<HTMLMetaElement>('meta[name="theme-color"]')) {
    meta.content = GROUND[theme === "auto" ? (meta.media.includes("dark") ? "dark" : "light") : theme];
  }
}

export const useSettings = create<SettingsState>()((set) => ({
  theme: firstTheme(),
  setTheme(theme) {
    remember("theme", theme);
    showTheme(theme);
    set({ theme });
  },
}));
