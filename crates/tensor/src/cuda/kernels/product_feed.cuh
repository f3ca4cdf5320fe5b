// How products on Hopper ask for what they read: see product_hopper.cu and product_turns.cu.
#pragma once
#include "finish.cuh"
#include "hopper.cuh"

// The kernel of a convolution, and where the channels of a matrix lie: with two inputs the first `split` steps of 64 are in the first one.
// `more` steps follow of a layer of other channels, pixel by pixel, of which the first `more_split` are in the first one of its inputs: for a stride of 1.
struct Window { int channels, time, height, width, time_stride, shift, time_before, above, left, split, more, more_split; };
DI int window_steps(const Window& w) { return (w.channels + 63) >> 6; }
DI int window_all(const Window& w) { return w.time * w.height * w.width * window_steps(w) + w.more; }

// What a block does in a turn: steps `from` to `to` along K of a tile, as part number `part` of it. Tiles after the first `whole` are cut in `parts`.
struct Turn { int tile, part, from, to; };
DI Turn turn_of(int t, int whole, int parts, int steps) {
  if (t < whole) return { t, 0, 0, steps };
  int v = t - whole, tile = quotient(v, parts), part = v - tile * parts;
  return { whole + tile, part, (int)((i64)part * steps / parts), (int)((i64)(part + 1) * steps / parts) };
}

// Stages of 128 rows of A and BN columns of W, 64 channels each, with barriers that say when one is full and when it was read.
template <int BN, int ST> struct Ring {
  static constexpr int A = 128 * 64 * 2, B = BN * 64 * 2, BYTES = ST * (A + B);
  u32 base, full, empty;
  DI u32 a(int s) const { return base + s * A; }
  DI u32 b(int s) const { return base + ST * A + s * B; }
};

// What is asked for next.
struct Stage {
  int s; u32 phase;
  template <int ST> DI void next() { if (++s == ST) { s = 0; phase ^= 1; } }
};

// Asks for the steps of a tile, by one thread.
template <int GEGLU> struct Feed {
  int x0, y0, z0, above, left, b0, b1, tap, step, kz, ky, kx;

  template <int BN> DI static Feed of(const Boxes& boxes, const Window& w, int mi, int ni, int N, int from) {
    Feed f;
    int phase;
    box_corner(boxes, mi, f.x0, f.y0, f.z0, phase);
    f.z0 = f.z0 * w.time_stride - w.time_before;
    // The kernels of a phase stand behind those of the phases before; it sees one row or column less at one side.
    f.above = w.above - (phase >> 1); f.left = w.left - (phase & 1);
    f.b0 = phase * N + (GEGLU ? ni * (BN / 2) : ni * BN); f.b1 = GEGLU ? N / 2 + f.b0 : f.b0 + BN / 2;
    f.tap = f.step = f.kz = f.ky = f.kx = 0;
    if (from > 0) {
      int steps = window_steps(w), area = w.height * w.width;
      f.tap = min(quotient(from, steps), w.time * area); f.step = from - f.tap * steps;
      f.kz = quotient(f.tap, area);
      f.ky = quotient(f.tap - f.kz * area, w.width); f.kx = f.tap - f.kz * area - f.ky * w.width;
    }
    return f;
  }

  // `weight` is the one of the tile's columns; `tb1` and `tb2` are the weight and the second input of the layer that follows, whose first input is `ta1`.
  template <int BN, int ST> DI void ask(const Ring<BN, ST>& ring, Stage& at, const TMap& ta, const TMap& ta1, const TMap& weight, const TMap& tb1, const TMap& tb2, const Window& w, int count) {
    const int steps = window_steps(w), odd = (1 << w.shift) - 1;
    for (int k = 0; k < count; k++) {
      u32 full = ring.full + 8 * at.s;
      mbar_wait(ring.empty + 8 * at.s, at.phase);
      mbar_expect(full, ring.A + ring.B);
      if (kz == w.time) {
        int late = step >= w.more_split;
        tma5(ring.a(at.s), late ? tb2 : ta1, full, (late ? step - w.more_split : step) * 64, x0, 0, y0, z0);
        tma2(ring.b(at.s), tb1, full, step * 64, b0);
        tma2(ring.b(at.s) + ring.B / 2, tb1, full, step * 64, b1);
        step++;
        at.template next<ST>();
        continue;
      }
      int dx = kx - left, dy = ky - above;
      // The channels of a matrix may lie in two places.
      int late = step >= w.split;
      tma5(ring.a(at.s), late ? ta1 : ta, full, (dx & odd) * w.channels + (late ? step - w.split : step) * 64, x0 + (dx >> w.shift), dy & odd, y0 + (dy >> w.shift), z0 + kz);
      int column = tap * w.channels + step * 64;
      tma2(ring.b(at.s), weight, full, column, b0);
      tma2(ring.b(at.s) + ring.B / 2, weight, full, column, b1);
      if (++step == steps) {
        step = 0; tap++;
        if (++kx == w.width) { kx = 0; if (++ky == w.height) { ky = 0; kz++; } }
      }
      at.template next<ST>();
    }
  }
};

// The parameters of products, in this order, and what is made of them.
#define PRODUCT_PARAMETERS AFTER_PARAMETERS(u16), int N, int out_height, int out_width, int out_count, int wlog, int hlog, int phases, \
    int channels, int time, int height, int width, int time_stride, int shift, int time_before, int above, int left, int split, int more, int more_split, int full_tiles, int parts, float* sums
#define PRODUCT_VALUES \
  const After<u16> after = AFTER_VALUES; \
  const Boxes boxes = { out_height, out_width, out_count, wlog, hlog, phases }; \
  const Window window = { channels, time, height, width, time_stride, shift, time_before, above, left, split, more, more_split };
// Blocks at work share what they read where tiles go down so many rows of tiles first.
constexpr int GROUP = 16;
