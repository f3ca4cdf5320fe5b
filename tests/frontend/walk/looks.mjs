// Every view in both sizes and both themes: nothing serious is wrong for those who cannot see or use a mouse.
import { join } from "node:path";
import { accessible, fitsWidth, go, step, VIEWS } from "./kit.mjs";

const THEMES = ["light", "dark"];

/** Pictures go to OUT, named like `create-phone-dark.png`. */
export async function walkLooks({ page }, size) {
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme, reducedMotion: "reduce" });
    await step(page, `looks: five views, ${size}, ${theme}`, async () => {
      for (const view of VIEWS) {
        await go(page, view);
        if (view === "Graph") await page.getByRole("toolbar", { name: "Graph tools" }).waitFor();
        await page.waitForLoadState("networkidle");
        await accessible(page, `${view} (${size}, ${theme})`);
        await fitsWidth(page, view);
        if (process.env.OUT) await page.screenshot({ path: join(process.env.OUT, `${view.toLowerCase()}-${size}-${theme}.png`) });
      }
    });
  }
}
