// What is said about Python packs.

export interface Pack {
  name: string;
  state: string;
  error: string | null;
  traceback?: string | null;
  seconds: number;
  nodes: string[];
  log?: string[];
}

export interface PacksReport {
  state: string;
  problem?: string | null;
  python?: { python?: string };
  packs: Pack[];
}

const count = (n: number, one: string) => `${n} ${one}${n === 1 ? "" : "s"}`;

/** One sentence about all packs. */
export function packsLine(report: PacksReport): string {
  if (report.problem) return report.problem;
  if (report.state === "starting" || report.state === "restarting") return "They are being loaded.";
  const failed = report.packs.filter((p) => p.state === "failed").length;
  const python = report.python?.python ? ` in Python ${report.python.python}` : "";
  const rest = failed === 0 ? "" : ` ${failed} could not be loaded.`;
  return `${count(report.packs.length - failed, "pack")} run${report.packs.length - failed === 1 ? "s" : ""}${python}.${rest}`;
}

/** One line about one pack. */
export function packLine(pack: Pack): string {
  if (pack.state === "failed") return pack.error?.split("\n")[0] ?? "It could not be loaded.";
  if (pack.state !== "loaded") return "It is being loaded.";
  return `${count(pack.nodes.length, "node")}, loaded in ${pack.seconds.toFixed(1)} s`;
}
