// The end of a product whose sums go through shared memory: whoever finishes them has eight columns of a row, in code that is short enough to stay in the
// caches of instructions. (Straight-line code for all accumulators of a thread is read once for every tile, and waiting for it took as long as K = 320.)
//
// What is added to columns is in shared memory, and residuals are asked for before the first step: nothing is waited for at the end.
#pragma once
#include "finish.cuh"
#include "hopper.cuh"

// Sums of 128 rows of BN columns, in pieces of eight columns. Neither the accumulators' two columns nor the eight of a piece meet in one bank.
template <int BN> struct Staged {
  static constexpr int PIECES = BN / 8, PITCH = (PIECES + 3) / 4 * 128, BYTES = 128 * PITCH, EACH = PIECES / 2;   // EACH: pieces of a thread where a warp has its own 16 rows
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
// The 256 threads that compute ask for it before the first step and leave it in shared memory after the last.
template <int BN> struct Added {
  static constexpr int ITEMS = 2, THREADS = 256, EACH = (ITEMS * BN + THREADS - 1) / THREADS;
  u32 base;
  i64 border;          // the first row of the second item
  bool any, all;       // whether there is anything; whether what belongs to items is here, or there is nothing of that kind
  float value[EACH];

  template <class T> DI void ask(const After<u16>& f, const Boxes& b, int x0, int y0, int z0, int phase, int c0, int n, int thread) {
    border = 0x7fffffff; all = true;
    any = f.bias || f.per_item || f.more;
    if (!any) return;
    int item = 0, count = 1;
    if (f.per_item) {
      bool ok;
      int wide = 1 << b.wlog, high = 1 << b.hlog, deep = 128 >> (b.wlog + b.hlog);
      int r = min(wide - 1, b.width - 1 - x0) + (min(high - 1, b.height - 1 - y0) << b.wlog) + (min(deep - 1, b.count - 1 - z0) << (b.wlog + b.hlog));
      item = (int)((u32)box_row(b, x0, y0, z0, phase, 0, ok) / (u32)f.rows_per_item);
      count = (int)((u32)box_row(b, x0, y0, z0, phase, r, ok) / (u32)f.rows_per_item) - item + 1;
      all = count <= ITEMS;
      border = (i64)(item + 1) * f.rows_per_item;
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
    if (!any) return;
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (thread + THREADS * k < ITEMS * BN) asm volatile("st.shared.f32 [%0], %1;" ::"r"(base + 4 * (thread + THREADS * k)), "f"(value[k]) : "memory");
  }
  // Adds it to eight columns of an output row.
  DI void add(float (&x)[8], i64 row, int piece) const {
    if (!any) return;
    u32 at = base + (row >= border ? BN * 4 : 0) + piece * 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float a, b, c, d;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(at + 16 * h) : "memory");
      x[4 * h] += a; x[4 * h + 1] += b; x[4 * h + 2] += c; x[4 * h + 3] += d;
    }
  }
};

// Pieces that a thread finishes: `first`, and every `step` further until `end`. A piece is 8 columns of a row of the tile, one row after the other.
struct Pieces { int first, step, end; };

// Where a tile is.
struct Tile { Boxes boxes; int x0, y0, z0, phase, c0; };

// Residuals of a thread's pieces, `FROM` to `TO`. They stay on their way until somebody needs them.
template <int PIECES, int FROM, int TO, int MOST> DI void ask_residuals(uint4 (&v)[MOST], const After<u16>& f, const Tile& tile, const Pieces& p, int n) {
#pragma unroll
  for (int k = FROM; k < TO; k++) {
    int i = p.first + k * p.step, r = i / PIECES, c = tile.c0 + (i - r * PIECES) * 8;
    bool ok;
    i64 row = box_row(tile.boxes, tile.x0, tile.y0, tile.z0, tile.phase, r, ok);
    v[k] = make_uint4(0, 0, 0, 0);
    if (i < p.end && ok && c < n)
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w) : "l"(f.residual + row * n + c) : "memory");
  }
}

// Finishes a thread's pieces, of which `sums(row, piece, x)` gives the sums. Residuals were asked for if there are any and nothing else is to be done (`plain`). What is written is left in the place
// of its sums then, where that is given.
template <class T, int BN, int MOST, class Sums> DI void finish_pieces(const After<u16>& f, const Added<BN>& added, const uint4 (&residual)[MOST], bool plain, const Tile& tile, const Pieces& p, int n, u32 left, Sums sums) {
  constexpr int PIECES = BN / 8;
  if (plain) {
#pragma unroll
    for (int k = 0; k < MOST; k++) {
      int i = p.first + k * p.step;
      if (i < p.end) {
        int r = i / PIECES, piece = i - r * PIECES, c = tile.c0 + piece * 8;
        float x[8];
        sums(r, piece, x);
        bool ok;
        i64 row = box_row(tile.boxes, tile.x0, tile.y0, tile.z0, tile.phase, r, ok);
        added.add(x, row, piece);
        if (f.residual) {
          const u32 v[4] = { residual[k].x, residual[k].y, residual[k].z, residual[k].w };
#pragma unroll
          for (int e = 0; e < 4; e++) { x[2 * e] += T::lo(v[e]); x[2 * e + 1] += T::hi(v[e]); }
        }
        if (ok && c < n) *(uint4*)(f.out + row * n + c) = make_uint4(T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]), T::pack(x[6], x[7]));
        if (left) Staged<BN>::write(left, r, piece, x);
      }
    }
    return;
  }
  After<u16> rest = f;
  rest.bias = rest.more = nullptr;
  if (added.all) rest.per_item = nullptr;
#pragma unroll 1
  for (int i = p.first; i < p.end; i += p.step) {
    int r = i / PIECES, piece = i - r * PIECES, c = tile.c0 + piece * 8;
    float x[8];
    sums(r, piece, x);
    bool ok;
    i64 row = box_row(tile.boxes, tile.x0, tile.y0, tile.z0, tile.phase, r, ok);
    added.add(x, row, piece);
    if (ok && c < n) finish8<T>(rest, x, row, c, n);
  }
}

// For a group norm that follows: the sum and the sum of the squares of every UNIT columns of what a block has written and left at `left`, pieces `from` to `to`, in a fixed order. All rows and columns of
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
    for (int r = from / PIECES + line; r * PIECES + piece < to; r += ROWS) {
      if (r * PIECES + piece < from) continue;
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
