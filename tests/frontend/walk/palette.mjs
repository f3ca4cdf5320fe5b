// Screenshots with 256 colours: a third of the size, and enough for a page.
import { deflateSync } from "node:zlib";

const COLOURS = 256;
/** So many of the most frequent colours are kept as they are: the flat ones of a page. */
const EXACT = 96;

/** All others are first rounded to 64 shades of each primary. */
const ROUNDED = 0xfcfcfc;

/** A PNG with a palette, from the pixels of a picture (`rgba`, four bytes each). */
export function smallPng(width, height, rgba) {
  const colours = new Uint32Array(width * height);
  for (let i = 0; i < colours.length; i += 1) colours[i] = (rgba[4 * i] << 16) | (rgba[4 * i + 1] << 8) | rgba[4 * i + 2];
  const exact = new Set(byCount(colours).slice(0, EXACT).map(([colour]) => colour));
  const rest = byCount(colours.filter((colour) => !exact.has(colour)).map((colour) => colour & ROUNDED));
  const palette = [...exact, ...halved(rest, COLOURS - exact.size)];
  const flat = Int32Array.from(palette.flatMap(parts));
  const places = new Map(rest.map(([colour]) => [colour, nearest(flat, ...parts(colour))]));
  const kept = new Map([...exact].map((colour, place) => [colour, place]));
  const rows = Buffer.alloc((width + 1) * height);
  for (let y = 0, i = 0; y < height; y += 1) {
    for (let x = 1; x <= width; x += 1, i += 1) rows[y * (width + 1) + x] = kept.get(colours[i]) ?? places.get(colours[i] & ROUNDED);
  }
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  return Buffer.concat([
    Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
    chunk("IHDR", head),
    chunk("PLTE", Buffer.from(flat)),
    chunk("IDAT", deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/** Colours with how often they occur, the most frequent first. */
function byCount(colours) {
  const counts = new Map();
  for (const colour of colours) counts.set(colour, (counts.get(colour) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
}

const parts = (colour) => [colour >> 16, (colour >> 8) & 255, colour & 255];

/** Median cut: the box with the widest spread is halved until there are enough; each gives its mean. */
function halved(colours, wanted) {
  const box = (list) => {
    const spread = [0, 1, 2].map((axis) => {
      let [low, high] = [255, 0];
      for (const [colour] of list) {
        const v = parts(colour)[axis];
        low = Math.min(low, v);
        high = Math.max(high, v);
      }
      return high - low;
    });
    const axis = spread.indexOf(Math.max(...spread));
    return { list, axis, spread: list.length < 2 ? 0 : spread[axis] };
  };
  const boxes = colours.length > 0 ? [box(colours)] : [];
  while (boxes.length > 0 && boxes.length < wanted) {
    const widest = boxes.reduce((a, b) => (b.spread > a.spread ? b : a));
    if (widest.spread === 0) break;
    const sorted = [...widest.list].sort((a, b) => parts(a[0])[widest.axis] - parts(b[0])[widest.axis]);
    const middle = sorted.length >> 1;
    boxes.splice(boxes.indexOf(widest), 1, box(sorted.slice(0, middle)), box(sorted.slice(middle)));
  }
  return boxes.map(({ list }) => {
    const sum = list.reduce(([r, g, b, n], [colour, count]) => {
      const [cr, cg, cb] = parts(colour);
      return [r + cr * count, g + cg * count, b + cb * count, n + count];
    }, [0, 0, 0, 0]);
    const [r, g, b] = [0, 1, 2].map((i) => Math.round(sum[i] / sum[3]));
    return (r << 16) | (g << 8) | b;
  });
}

/** Place of the colour that the eye would take for this one. */
function nearest(flat, r, g, b) {
  let best = 0;
  let least = Infinity;
  for (let i = 0; i < flat.length; i += 3) {
    const [dr, dg, db] = [flat[i] - r, flat[i + 1] - g, flat[i + 2] - b];
    const far = 2 * dr * dr + 4 * dg * dg + db * db;
    if (far < least) {
      best = i / 3;
      least = far;
    }
  }
  return best;
}

const TABLE = Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c >>> 0;
});

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type, "latin1"), data]);
  let crc = 0xffffffff;
  for (const byte of body) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  const out = Buffer.alloc(body.length + 8);
  out.writeUInt32BE(data.length, 0);
  body.copy(out, 4);
  out.writeUInt32BE((crc ^ 0xffffffff) >>> 0, body.length + 4);
  return out;
}
