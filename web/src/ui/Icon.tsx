// Own line icons, drawn on a 24-unit grid with the colour of the text around them.

const PATHS = {
  create: "M12 3.5l1.9 4.9 4.9 1.9-4.9 1.9L12 17.1l-1.9-4.9-4.9-1.9 4.9-1.9zM19 15.5l.8 2.2 2.2.8-2.2.8-.8 2.2-.8-2.2-2.2-.8 2.2-.8z",
  apps: "M4.5 4.5h6v6h-6zM13.5 4.5h6v6h-6zM4.5 13.5h6v6h-6zM16.5 13.5v6M13.5 16.5h6",
  graph: "M4 6.5h5v5H4zM15 3.5h5v5h-5zM15 15.5h5v5h-5zM9 9c4 0 2-3 6-3M9 9c4 0 2 9 6 9",
  gallery: "M4 5h16v14H4zM4 16l4.5-4.5 4 4 3-3L20 17M15.5 9.5h.01",
  memory: "M6 6h12v12H6zM9.5 9.5h5v5h-5zM9 3v3M15 3v3M9 18v3M15 18v3M3 9h3M3 15h3M18 9h3M18 15h3",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  check: "M5 12.5l4.5 4.5L19 7.5",
  trash: "M4.5 7h15M9.5 7V4.5h5V7M6.5 7l1 13h9l1-13M10 11v5.5M14 11v5.5",
  download: "M12 4v11M7.5 11l4.5 4.5L16.5 11M5 20h14",
  upload: "M12 20V9M7.5 12.5L12 8l4.5 4.5M5 4h14",
  dice: "M5 5h14v14H5zM9 9h.01M15 9h.01M12 12h.01M9 15h.01M15 15h.01",
  lock: "M6.5 11h11v8.5h-11zM8.5 11V8a3.5 3.5 0 017 0v3",
  unlock: "M6.5 11h11v8.5h-11zM8.5 11V7.5a3.5 3.5 0 016.8-1.2",
  play: "M8 5.5v13l10.5-6.5z",
  pause: "M8.5 5.5v13M15.5 5.5v13",
  stop: "M6.5 6.5h11v11h-11z",
  up: "M12 19V5M6 11l6-6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  chevron: "M6 9.5l6 6 6-6",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  search: "M11 4.5a6.5 6.5 0 100 13 6.5 6.5 0 000-13zM16 16l4.5 4.5",
  copy: "M8.5 8.5h11v11h-11zM15.5 8.5v-4h-11v11h4",
  edit: "M4.5 19.5l1-4.5L16 4.5l3.5 3.5L9 18.5zM13.5 7l3.5 3.5",
  brush: "M19.5 4.5c-5 2.5-8.5 6-10.5 9.5l1 1c3.5-2 7-5.5 9.5-10.5zM8.5 14.5c-2.5 0-3 3-5 4 2.5 1.5 6.5 1 6.5-2.5z",
  eraser: "M8 19.5l-4-4a1.4 1.4 0 010-2l9-9a1.4 1.4 0 012 0l5 5a1.4 1.4 0 010 2l-8 8zM9 9l7 7M8 19.5h12",
  hand: "M12 4v16M4 12h16M9.5 6.5L12 4l2.5 2.5M9.5 17.5L12 20l2.5-2.5M6.5 9.5L4 12l2.5 2.5M17.5 9.5L20 12l-2.5 2.5",
  swap: "M4.5 8.5h13M14 5l3.5 3.5L14 12M19.5 15.5h-13M10 12l-3.5 3.5L10 19",
  image: "M4 5h16v14H4zM4 16l4.5-4.5 4 4 3-3L20 17M15.5 9.5h.01",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M13 4.5v5M11 14.5v5",
  sun: "M12 8a4 4 0 100 8 4 4 0 000-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  moon: "M19.5 14.5A8 8 0 019.5 4.5a8 8 0 1010 10z",
  auto: "M12 3.5a8.5 8.5 0 100 17 8.5 8.5 0 000-17zM12 3.5v17M12 7l4.5 0M12 12h8.4M12 17l4.5 0",
  help: "M9 9a3 3 0 116 .3c0 1.9-3 2.2-3 4.2M12 17.5h.01M12 3a9 9 0 100 18 9 9 0 000-18z",
  info: "M12 3a9 9 0 100 18 9 9 0 000-18zM12 11v5.5M12 7.5h.01",
  warning: "M12 4l9 16H3zM12 10v5M12 17.5h.01",
  refresh: "M19.5 12a7.5 7.5 0 11-2.2-5.3L19.5 9M19.5 4.5V9H15",
  undo: "M9 6L4.5 10.5 9 15M4.5 10.5H14a5 5 0 010 10h-3",
  redo: "M15 6l4.5 4.5L15 15M19.5 10.5H10a5 5 0 000 10h3",
  zoomIn: "M11 4.5a6.5 6.5 0 100 13 6.5 6.5 0 000-13zM16 16l4.5 4.5M11 8v6M8 11h6",
  zoomOut: "M11 4.5a6.5 6.5 0 100 13 6.5 6.5 0 000-13zM16 16l4.5 4.5M8 11h6",
  fit: "M4.5 9V4.5H9M15 4.5h4.5V9M19.5 15v4.5H15M9 19.5H4.5V15",
  compare: "M4 5h16v14H4zM12 3v18M7 12h2M15 12h2",
  layers: "M12 4l8.5 4.5L12 13 3.5 8.5zM3.5 12.5L12 17l8.5-4.5M3.5 16.5L12 21l8.5-4.5",
  pin: "M9 4h6l-1 6 3.5 3.5h-11L10 10zM12 13.5V20",
  eject: "M12 5l7 8.5H5zM5 18.5h14",
  clock: "M12 3.5a8.5 8.5 0 100 17 8.5 8.5 0 000-17zM12 7.5V12l3 2.5",
  drag: "M9 6h.01M15 6h.01M9 12h.01M15 12h.01M9 18h.01M15 18h.01",
  save: "M5 4.5h11l3.5 3.5v11.5H5zM8.5 4.5V9h6V4.5M8 19.5v-6h8v6",
  folder: "M3.5 6h6l2 2.5h9V19h-17z",
  link: "M10 14a4 4 0 005.7.3l3-3a4 4 0 00-5.7-5.7l-1 1M14 10a4 4 0 00-5.7-.3l-3 3a4 4 0 005.7 5.7l1-1",
  eye: "M2.5 12c3-5 6-7 9.5-7s6.5 2 9.5 7c-3 5-6 7-9.5 7s-6.5-2-9.5-7zM12 9a3 3 0 100 6 3 3 0 000-6z",
  eyeOff: "M4 4l16 16M9.5 5.5A9 9 0 0112 5c3.5 0 6.5 2 9.5 7a17 17 0 01-2.7 3.6M6.2 7.2A16 16 0 002.5 12c3 5 6 7 9.5 7a9 9 0 004-.9",
  key: "M15 4.5a4.5 4.5 0 10-4 6.5l-7 7v2.5h3V18h2.5v-2.5L12 13a4.5 4.5 0 003-8.5zM15.5 8.5h.01",
  keyboard: "M3 6.5h18v11H3zM6.5 10h.01M10 10h.01M14 10h.01M17.5 10h.01M7.5 14h9",
  star: "M12 4l2.5 5.3 5.7.7-4.2 4 1.1 5.7L12 17l-5.1 2.7L8 14l-4.2-4 5.7-.7z",
  wand: "M5 19L15 9M14 4v3M18.5 8.5h3M17 5.5l-1.5 1.5M18 12.5L16.5 11",
  film: "M4 5h16v14H4zM8 5v14M16 5v14M4 9.5h4M4 14.5h4M16 9.5h4M16 14.5h4",
  sound: "M4.5 9.5v5H8l5 4v-13l-5 4zM16 9a4 4 0 010 6M18.5 6.5a8 8 0 010 11",
  file: "M6.5 3.5h7L18 8v12.5H6.5zM13.5 3.5V8H18",
  imageOff: "M4 4l16 16M9 5h11v11M4 6.5V19h12.5M4 16l4.5-4.5 6.5 6.5",
  queue: "M4.5 6h15M4.5 12h15M4.5 18h9",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 20, className }: { name: IconName; size?: number; className?: string }) {
  const dots = name === "more" || name === "drag" || name === "dice" ? 2.6 : 1.7;
  return (
    <svg
      className={className}
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      strokeWidth={dots === 2.6 ? 2.2 : dots}
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The mark: a painted hill and a sun on a piece of plaster. */
export function Logo({ size = 32 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" fill="#b4512e" />
      <path d="M6 24c4-9 7-12 10-12 2.6 0 3.2 3 5 3 1.6 0 2.7-1.6 5-5v16H6z" fill="#f7ecdf" />
      <circle cx="11" cy="9.5" r="2.8" fill="#f2c078" />
    </svg>
  );
}
