// The end of a product whose sums go through shared memory: whoever finishes them has eight columns of a row, in code that is short enough to stay in the
// caches of instructions. (Straight-line code for all accumulators of a thread is read once for every tile, and waiting for it took as long as K = 320.)
//
// What is added to columns is in shared memory, and residuals come there during the steps: nothing is waited for at the end. Loops are hardly unrolled, because what is read anew
// for every kernel of a step is code.
#pragma once
#include "finish.cuh"
#include "hopper.cuh"

// Sums of 128 rows of BN columns, in pieces of eight columns. Neither the accumulators' two columns nor the eight of a piece meet in one bank.
template <int BN> struct Staged {
  static constexpr int PIECES = BN / 8, PITCH = (PIECES + 3) / 4 * 128, BYTES = 128 * PITCH;
  DI static u32 place(int row, int piece, int half) { return row * PITCH + ((piece ^ (row & 3)) << 5) + ((half ^ ((piece >> 2) & 1)) << 4); }

  DI static void keep(u32 base, const float (&acc)[BN / 2], int row, int q) {
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      u32 at = base + place(row, j, q >> 1) + 8 * (q & 1);
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(acc[4 * j]), "f"(acc[4 * j + 1]) : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * PITCH), "f"(acc[4 * j + 2]), "f"(acc[4 * j + 3]) : "memory");
    }
  }
  DI static void read(u32 base, int row, int piece, float (&x)[8]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[4 * h]), "=f"(x[4 * h + 1]), "=f"(x[4 * h + 2]), "=f"(x[4 * h + 3]) : "r"(base + place(row, piece, h)) : "memory");
    }
  }
  DI static void write(u32 base, int row, int piece, const float (&x)[8]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(base + place(row, piece, h)), "f"(x[4 * h]), "f"(x[4 * h + 1]), "f"(x[4 * h + 2]), "f"(x[4 * h + 3]) : "memory");
    }
  }
  // The same in another block of the cluster.
  DI static void read_from(u32 base, u32 rank, int row, int piece, float (&x)[8]) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(base), "r"(rank));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[4 * h]), "=f"(x[4 * h + 1]), "=f"(x[4 * h + 2]), "=f"(x[4 * h + 3]) : "r"(there + place(row, piece, h)) : "memory");
    }
  }
};

// What is added to the columns of a tile before all else: the bias, and what belongs to the item of a row. A tile has rows of two items at most, or else nothing of theirs is here.
// The 256 threads that compute ask for it before the first step and leave it in shared memory after the last: first the first halves of all pieces, then the second ones, so that
// neighbours who read four numbers never meet in a bank.
template <int BN> struct Added {
  static constexpr int ITEMS = 2, THREADS = 256, EACH = (ITEMS * BN + THREADS - 1) / THREADS, BYTES = 4 * ITEMS * BN;
  u32 base;
  int border;          // the first row of the second item
  bool all;            // whether what belongs to items is here, or there is nothing of that kind
  float value[EACH];

  template <class T> DI void ask(const After<u16>& f, const Boxes& b, int x0, int y0, int z0, int phase, int c0, int n, int thread) {
    border = 0x7fffffff; all = true;
    int item = 0, count = 1;
    if (f.per_item) {
      bool ok;
      int wide = 1 << b.wlog, high = 1 << b.hlog, deep = 128 >> (b.wlog + b.hlog);
      int r = min(wide - 1, b.width - 1 - x0) + (min(high - 1, b.height - 1 - y0) << b.wlog) + (min(deep - 1, b.count - 1 - z0) << (b.wlog + b.hlog));
      item = quotient((int)box_row(b, x0, y0, z0, phase, 0, ok), f.rows_per_item);
      count = quotient((int)box_row(b, x0, y0, z0, phase, r, ok), f.rows_per_item) - item + 1;
      all = count <= ITEMS;
      border = (int)min((i64)(item + 1) * f.rows_per_item, (i64)0x7fffffff);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      int i = thread + THREADS * k, which = i / BN, c = c0 + i % BN;
      value[k] = 0.f;
      if (c < n && which < count) {
        if (f.bias) value[k] = f.bias[c];
        if (f.more) value[k] += f.more[c];
        if (f.per_item && all) value[k] += T::load(f.per_item[(i64)(item + which) * n + c]);
      }
    }
  }
  DI void keep(int thread) const {
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      int i = thread + THREADS * k, which = i / BN, c = i - which * BN;
      if (i < ITEMS * BN) asm volatile("st.shared.f32 [%0], %1;" ::"r"(base + which * BN * 4 + (c >> 2 & 1) * BN * 2 + (c >> 3) * 16 + (c & 3) * 4), "f"(value[k]) : "memory");
    }
  }
  // Adds it to eight columns of an output row.
  DI void add(float (&x)[8], i64 row, int piece) const {
    u32 at = base + ((int)row >= border ? BN * 4 : 0) + piece * 16;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float a, b, c, d;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(at + BN * 2 * h) : "memory");
      x[4 * h] += a; x[4 * h + 1] += b; x[4 * h + 2] += c; x[4 * h + 3] += d;
    }
  }
};

// Where a tile is.
struct Tile { Boxes boxes; int x0, y0, z0, phase, c0; };

// What each of the 256 threads finishes: a piece, which is eight columns, of every LINES-th row of its block's part of the tile, rows `from` to `to`. Some threads have none.
template <int BN> struct Share {
  static constexpr int PIECES = BN / 8, LINES = 256 / PIECES;
  int piece, first, from, to;
  DI static Share of(int thread, int rank, int blocks) {
    int line = thread / PIECES, from = rank * 128 / blocks, to = (rank + 1) * 128 / blocks;
    return { thread - line * PIECES, line < LINES ? from + line : to, from, to };
  }
  // Where the residual of row r is.
  DI u32 place(u32 room, int r) const { return room + ((r - from) * PIECES + piece) * 16; }

  // Asks for residuals of its rows, which come to `room`.
  DI void ask(u32 room, const After<u16>& f, const Tile& tile, int n) const {
    const int c = tile.c0 + piece * 8;
#pragma unroll 1
    for (int r = first; r < to; r += LINES) {
      bool ok;
      i64 row = box_row(tile.boxes, tile.x0, tile.y0, tile.z0, tile.phase, r, ok);
      if (ok && c < n) cp16(place(room, r), f.residual + row * n + c, 16);
    }
    cp_commit();
  }

  // Finishes its rows, of which `sums(row, piece, x)` gives the sums. Residuals were asked for if there are any and nothing else is to be done (`plain`). What is written is left in the
  // place of its sums then, where that is given.
  template <class T, class Sums> DI void finish(const After<u16>& f, const Added<BN>& added, u32 room, bool plain, const Tile& tile, int n, u32 left, Sums sums) const {
    const int c = tile.c0 + piece * 8;
    if (plain) {
      cp_wait<0>();
#pragma unroll 2
      for (int r = first; r < to; r += LINES) {
        float x[8];
        sums(r, piece, x);
        bool ok;
        i64 row = box_row(tile.boxes, tile.x0, tile.y0, tile.z0, tile.phase, r, ok);
        added.add(x, row, piece);
        if (f.residual) {
          u32 v[4];
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(place(room, r)) : "memory");
#pragma unroll
          for (int e = 0; e < 4; e++) { x[2 * e] += T::lo(v[e]); x[2 * e + 1] += T::hi(v[e]); }
        }
        if (ok && c < n) *(uint4*)(f.out + row * n + c) = make_uint4(T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]), T::pack(x[6], x[7]));
        if (left) Staged<BN>::write(left, r, piece, x);
      }
      return;
    }
    After<u16> rest = f;
    rest.bias = rest.more = nullptr;
    if (added.all) rest.per_item = nullptr;
#pragma unroll 1
    for (int r = first; r < to; r += LINES) {
      float x[8];
      sums(r, piece, x);
      bool ok;
      i64 row = box_row(tile.boxes, tile.x0, tile.y0, tile.z0, tile.phase, r, ok);
      added.add(x, row, piece);
      if (ok && c < n) finish8<T>(rest, x, row, c, n);
    }
  }
};

// For a group norm that follows: the sum and the sum of the squares of every UNIT columns of what a block has written and left at `left`, rows `from` to `to`, in a fixed order. All rows and columns of
// the tile are there. (Sums of squares about zero lose what sixteen bits have lost already: f32 has thirteen digits more.) Loops are not unrolled: see above.
// `room`: shared memory for 16 bytes for each of the 256 threads.
constexpr int UNIT = 10;
template <int BN> DI void add_columns(u32 left, float4* room, int from, int to, int thread, float2* sums) {
  constexpr int PIECES = BN / 8, ROWS = 256 / PIECES, UNITS = BN / UNIT, LANES = UNITS <= 8 ? 32 : 16;
  static_assert(UNITS * LANES <= 256 && UNIT > 8, "all units at once; eight columns are of two at most");
  bar_sync(1, 256);
  const int line = thread / PIECES, piece = thread - line * PIECES;
  if (line < ROWS) {
    // The columns of a piece are of one unit, or the last of them of the next.
    const int split = min(8, (piece * 8 / UNIT + 1) * UNIT - piece * 8);
    float s[8], q[8];
#pragma unroll
    for (int e = 0; e < 8; e++) s[e] = q[e] = 0.f;
#pragma unroll 1
    for (int r = from + line; r < to; r += ROWS) {
      float x[8];
      Staged<BN>::read(left, r, piece, x);
#pragma unroll
      for (int e = 0; e < 8; e++) { s[e] += x[e]; q[e] += x[e] * x[e]; }
    }
    float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      bool near = e < split;
      v.x += near ? s[e] : 0.f; v.y += near ? q[e] : 0.f;
      v.z += near ? 0.f : s[e]; v.w += near ? 0.f : q[e];
    }
    room[thread] = v;
  }
  bar_sync(1, 256);
  const int unit = thread / LANES, lane = thread % LANES, first = unit * UNIT / 8, last = (unit * UNIT + UNIT - 1) / 8;
  if (unit >= UNITS) return;
  float2 all = make_float2(0.f, 0.f);
#pragma unroll 1
  for (int i = lane; i < ROWS * 3; i += LANES) {
    int line = i / 3, piece = first + i - line * 3;
    if (piece <= last) {
      float4 t = room[line * PIECES + piece];
      bool near = piece * 8 / UNIT == unit;
      all.x += near ? t.x : t.z; all.y += near ? t.y : t.w;
    }
  }
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) { all.x += shxf(all.x, o); all.y += shxf(all.y, o); }
  if (lane == 0) sums[unit] = all;
}
