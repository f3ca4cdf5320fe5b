import { expect, test } from "vitest";
import { crc32, uniqueNames, zipParts } from "./zip";

const text = (s: string) => new TextEncoder().encode(s);

function joined(parts: Uint8Array[]): Uint8Array {
  const out = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

test("the checksum is the well-known one", () => {
  expect(crc32(text("123456789"))).toBe(0xcbf43926);
  expect(crc32(new Uint8Array())).toBe(0);
});

test("an archive has its entries, its directory and its end where the format wants them", () => {
  const bytes = joined(
    zipParts([
      { name: "a.txt", data: text("123456789"), time: new Date(2026, 10, 15, 13, 4, 6) },
      { name: "bé.bin", data: new Uint8Array([1, 2, 3]) },
    ]),
  );
  const view = new DataView(bytes.buffer);
  const end = bytes.length - 22;
  expect(view.getUint32(end, true)).toBe(0x06054b50);
  expect(view.getUint16(end + 10, true)).toBe(2);
  const directory = view.getUint32(end + 16, true);
  expect(directory + view.getUint32(end + 12, true)).toBe(end);

  let at = directory;
  const read: [string, string][] = [];
  for (let i = 0; i < 2; i += 1) {
    expect(view.getUint32(at, true)).toBe(0x02014b50);
    expect(view.getUint16(at + 8, true) & 0x0800).toBe(0x0800);
    expect(view.getUint16(at + 10, true)).toBe(0);
    const [crc, size, label] = [view.getUint32(at + 16, true), view.getUint32(at + 24, true), view.getUint16(at + 28, true)];
    const local = view.getUint32(at + 42, true);
    expect(view.getUint32(local, true)).toBe(0x04034b50);
    expect(view.getUint32(local + 14, true)).toBe(crc);
    const name = new TextDecoder().decode(bytes.slice(at + 46, at + 46 + label));
    expect(new TextDecoder().decode(bytes.slice(local + 30, local + 30 + label))).toBe(name);
    const data = bytes.slice(local + 30 + label, local + 30 + label + size);
    expect(crc32(data)).toBe(crc);
    read.push([name, [...data].join()]);
    at += 46 + label;
  }
  expect(at).toBe(end);
  expect(read).toEqual([
    ["a.txt", "49,50,51,52,53,54,55,56,57"],
    ["bé.bin", "1,2,3"],
  ]);
  expect([view.getUint16(10, true), view.getUint16(12, true)]).toEqual([(13 << 11) | (4 << 5) | 3, (46 << 9) | (11 << 5) | 15]);
});

test("an empty archive is only its end", () => {
  expect(joined(zipParts([])).length).toBe(22);
});

test("names that would clash or leave the folder are changed", () => {
  expect(uniqueNames(["a.png", "A.png", "a.png", "../b", "", "c"])).toEqual(["a.png", "A (2).png", "a (3).png", ".._b", "file", "c"]);
});
