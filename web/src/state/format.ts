// Amounts and times in words.

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/** `1.5 GB`, with powers of 1024 as the programs that show memory do. */
export function bytes(n: number): string {
  let value = Math.max(0, n);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${Math.round(value)} ${value === 1 ? "byte" : "bytes"}`;
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${UNITS[unit]}`;
}

/** A length of time: `8 s`, `2 min 5 s`, `1 h 3 min`. */
export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${s / 60} min`;
  const minutes = Math.round((s % 3600) / 60);
  return minutes ? `${Math.floor(s / 3600)} h ${minutes} min` : `${Math.floor(s / 3600)} h`;
}

/** How long ago a moment was, `now` and `then` in milliseconds. */
export function ago(then: number, now: number): string {
  const s = Math.round((now - then) / 1000);
  if (s < 5) return "just now";
  if (s < 60) return `${s} seconds ago`;
  const steps: [number, string][] = [
    [60, "minute"],
    [3600, "hour"],
    [86400, "day"],
  ];
  let [size, word] = steps[0]!;
  for (const [a, b] of steps) if (s >= a) [size, word] = [a, b];
  const n = Math.floor(s / size);
  return n === 1 ? `${word === "hour" ? "an" : "a"} ${word} ago` : `${n} ${word}s ago`;
}
