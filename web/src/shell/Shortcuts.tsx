// Keyboard shortcuts of the shell, and the window that lists all of them.
import { useEffect } from "react";
import { create } from "zustand";
import { VIEW_INFO, VIEWS } from "../routes";
import { go } from "../state/handoff";
import { Dialog } from "../ui";
import css from "./Shortcuts.module.css";

export const useShortcutHelp = create<{ open: boolean; show(): void; hide(): void }>()((set) => ({
  open: false,
  show: () => set({ open: true }),
  hide: () => set({ open: false }),
}));

/** Letters typed into a field are text, not shortcuts. */
function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

const SEQUENCE = 1200;

function useShortcuts() {
  useEffect(() => {
    let waiting: ReturnType<typeof setTimeout> | undefined;
    const down = (e: KeyboardEvent) => {
      if (e.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (e.altKey && !e.ctrlKey && !e.metaKey && /^Digit[1-5]$/.test(e.code)) {
        e.preventDefault();
        go(`#/${VIEWS[Number(e.code.slice(5)) - 1]}`);
        return;
      }
      if (e.altKey || e.ctrlKey || e.metaKey || isTyping(e.target)) return;
      if (e.key === "?") {
        e.preventDefault();
        useShortcutHelp.getState().show();
      } else if (waiting) {
        clearTimeout(waiting);
        waiting = undefined;
        const view = VIEWS.find((v) => VIEW_INFO[v].key === e.key.toLowerCase());
        if (view) {
          e.preventDefault();
          go(`#/${view}`);
        }
      } else if (e.key === "g") {
        waiting = setTimeout(() => (waiting = undefined), SEQUENCE);
      }
    };
    addEventListener("keydown", down);
    return () => removeEventListener("keydown", down);
  }, []);
}

const GALLERY: [string, string[]][] = [
  ["Move between pictures", ["arrow keys"]],
  ["Select a picture", ["Space", "x"]],
  ["Back to all pictures", ["Esc"]],
];
const GRAPH: [string, string[]][] = [
  ["Add a node", ["Tab", "/"]],
  ["Find a node", ["Ctrl+F"]],
  ["Undo, redo", ["Ctrl+Z", "Ctrl+Y"]],
  ["Copy, paste", ["Ctrl+C", "Ctrl+V"]],
  ["Delete the selection", ["Delete"]],
  ["Save", ["Ctrl+S"]],
  ["All commands of the graph", ["Ctrl+K"]],
];

export function Shortcuts() {
  useShortcuts();
  const { open, hide } = useShortcutHelp();
  const rows: [string, string[]][] = [
    ["Create the picture or run the workflow", ["Ctrl+Enter"]],
    ...VIEWS.map((v, i): [string, string[]] => [`Open ${VIEW_INFO[v].label}`, [`g then ${VIEW_INFO[v].key}`, `Alt+${i + 1}`]]),
    ["Show this list", ["?"]],
  ];
  return (
    <Dialog open={open} onClose={hide} title="Keyboard shortcuts">
      <Table caption="Everywhere" rows={rows} />
      <Table caption="In Gallery" rows={GALLERY} />
      <Table caption="In Graph" rows={GRAPH} />
    </Dialog>
  );
}

function Table({ caption, rows }: { caption: string; rows: [string, string[]][] }) {
  return (
    <table className={css.table}>
      <caption>{caption}</caption>
      <tbody>
        {rows.map(([what, keys]) => (
          <tr key={what}>
            <th scope="row">{what}</th>
            <td>
              {keys.map((k, i) => (
                <span key={k}>
                  {i > 0 && (what.includes(",") ? ", " : " or ")}
                  <kbd>{k}</kbd>
                </span>
              ))}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
