// What is said about Python packs.

export interface Pack {
  name: string;
  state: string;
  error: string | null;
  traceback?: string | null;
  seconds: number;
  nodes: string[];
  log?: string[];
  /** How often the process ended in one of its nodes, and how the last time. */
  ends?: number;
  last_end?: string | null;
  /** What it wrote where packs should not write. */
  writes_outside?: string[];
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

/** What a pack did that it should not have done. */
export function packFaults(pack: Pack): string[] {
  const faults: string[] = [];
  if (pack.ends) {
    const how = pack.last_end ? `: ${pack.last_end}` : "";
    faults.push(`Its process ended unexpectedly ${pack.ends === 1 ? "once" : `${pack.ends} times`} while running one of its nodes${how}`);
  }
  const outside = pack.writes_outside ?? [];
  if (outside.length > 0) faults.push(`It wrote outside its folders: ${outside.join(", ")}`);
  return faults;
}
