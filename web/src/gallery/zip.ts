// Writes a zip archive with stored (not compressed) entries: pictures are compressed already.

export interface ZipEntry {
  name: string;
  data: Uint8Array;
  time?: Date;
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c >>> 0;
});

/** The checksum of zip, gzip and PNG. */
export function crc32(data: Uint8Array): number {
  let c = 0xffffffff;
  for (let i = 0; i < data.length; i += 1) c = (TABLE[(c ^ (data[i] as number)) & 0xff] as number) ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

/** Time and date as MS-DOS has them: two-second steps from 1980 on. */
function dosTime(t: Date): [number, number] {
  const year = Math.max(1980, Math.min(2107, t.getFullYear()));
  return [(t.getHours() << 11) | (t.getMinutes() << 5) | (t.getSeconds() >> 1), ((year - 1980) << 9) | ((t.getMonth() + 1) << 5) | t.getDate()];
}

/** Names made different: a second `a.png` becomes `a (2).png`. */
export function uniqueNames(names: readonly string[]): string[] {
  const used = new Set<string>();
  return names.map((name) => {
    const clean = name.replace(/[\\/:*?"<>|\u0000-\u001f]/g, "_") || "file";
    const dot = clean.lastIndexOf(".");
    const [stem, end] = dot > 0 ? [clean.slice(0, dot), clean.slice(dot)] : [clean, ""];
    let free = clean;
    for (let n = 2; used.has(free.toLowerCase()); n += 1) free = `${stem} (${n})${end}`;
    used.add(free.toLowerCase());
    return free;
  });
}

/** Fields are little-endian; `widths` gives the bytes of each value. */
function record(fields: readonly (readonly [value: number, bytes: 2 | 4])[]): Uint8Array {
  const out = new Uint8Array(fields.reduce((sum, [, bytes]) => sum + bytes, 0));
  const view = new DataView(out.buffer);
  let at = 0;
  for (const [value, bytes] of fields) {
    if (bytes === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += bytes;
  }
  return out;
}

const UTF8_NAMES = 0x0800;

/** The archive in parts, ready for a Blob. Throws where it would pass 4 GiB or 65,535 entries, the limits of the plain format. */
export function zipParts(entries: readonly ZipEntry[]): Uint8Array<ArrayBuffer>[] {
  if (entries.length > 0xffff) throw new RangeError("too many files for one archive");
  const parts: Uint8Array[] = [];
  const directory: Uint8Array[] = [];
  let at = 0;
  for (const { name, data, time } of entries) {
    const label = new TextEncoder().encode(name);
    const [clock, date] = dosTime(time ?? new Date(1980, 0, 1));
    const shared = [
      [20, 2],
      [UTF8_NAMES, 2],
      [0, 2],
      [clock, 2],
      [date, 2],
      [crc32(data), 4],
      [data.length, 4],
      [data.length, 4],
      [label.length, 2],
      [0, 2],
    ] as const;
    const head = record([[0x04034b50, 4], ...shared]);
    directory.push(record([[0x02014b50, 4], [20, 2], ...shared, [0, 2], [0, 2], [0, 2], [0, 4], [at, 4]]), label);
    parts.push(head, label, data);
    at += head.length + label.length + data.length;
    if (at > 0xffffffff) throw new RangeError("too large for one archive");
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = record([
    [0x06054b50, 4],
    [0, 2],
    [0, 2],
    [entries.length, 2],
    [entries.length, 2],
    [size, 4],
    [at, 4],
    [0, 2],
  ]);
  return [...parts, ...directory, end] as Uint8Array<ArrayBuffer>[];
}
