// Navigation between the five views: a rail on wide screens, a bar at the bottom of phones.
import { type ViewName, VIEW_INFO, VIEWS } from "../routes";
import { useLive } from "../state/live";
import { type Theme, useSettings } from "../state/settings";
import { Icon, IconButton, type IconName, Logo } from "../ui";
import { useShortcutHelp } from "./Shortcuts";
import css from "./Nav.module.css";

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const THEMES: Record<Theme, { icon: IconName; words: string }> = {
  auto: { icon: "auto", words: "same as the system" },
  light: { icon: "sun", words: "light" },
  dark: { icon: "moon", words: "dark" },
};

export function ThemeButton() {
  const { theme, setTheme } = useSettings();
  return (
    <IconButton
      label={`Colours: ${THEMES[theme].words}. Change to ${THEMES[NEXT[theme]].words}`}
      icon={THEMES[theme].icon}
      onClick={() => setTheme(NEXT[theme])}
    />
  );
}

/** How many jobs run or wait, as a small number on Gallery, where the queue is. */
function QueueCount() {
  const count = useLive((s) => s.jobs.filter((j) => j.status === "pending" || j.status === "in_progress").length);
  if (!count) return null;
  return (
    <span className={css.count}>
      <span aria-hidden="true">{count > 99 ? "99+" : count}</span>
      <span className="hidden-visually">, {count} in the queue</span>
    </span>
  );
}

export function Nav({ view }: { view: ViewName }) {
  const openHelp = useShortcutHelp((s) => s.show);
  return (
    <nav className={css.nav} aria-label="Views">
      <a className={css.brand} href="#/create" aria-label="Fresco, go to Create">
        <Logo size={36} />
      </a>
      <ul className={css.list}>
        {VIEWS.map((name) => (
          <li key={name}>
            <a href={`#/${name}`} className={css.item} aria-current={name === view ? "page" : undefined}>
              <span className={css.icon}>
                <Icon name={VIEW_INFO[name].icon} size={22} />
                {name === "gallery" && <QueueCount />}
              </span>
              <span className={css.label}>{VIEW_INFO[name].label}</span>
            </a>
          </li>
        ))}
      </ul>
      <div className={css.foot}>
        <IconButton label="Keyboard shortcuts" icon="keyboard" onClick={openHelp} />
        <ThemeButton />
      </div>
    </nav>
  );
}
