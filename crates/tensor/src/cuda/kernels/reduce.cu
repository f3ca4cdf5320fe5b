// Sums, means, spreads and extremes of rows. The order of every sum is fixed: it depends on the sizes alone.
#include "vectors.cuh"

// Numbers as in Rust's wrapper.
enum Reduction { SUM = 0, MEAN = 1, STD = 2, VAR = 3, NORM = 4, MIN = 5, MAX = 6 };

DI float plus(float a, float b) { return a + b; }
// NaN wins.
DI float smaller(float a, float b) { return a != a ? a : b != b ? b : b < a ? b : a; }
DI float larger(float a, float b) { return a != a ? a : b != b ? b : b > a ? b : a; }
DI float infinity() { return __uint_as_float(0x7f800000u); }

// Part of a row as `threads` threads see it, this one being number `me`: its elements in packs where the row is aligned.
template <class F> DI void for_each_element(const Element* row, i64 count, int me, int threads, bool packs, F f) {
  if (packs) {
    for (i64 at = (i64)me * VEC; at < count; at += (i64)threads * VEC) {
      float v[VEC];
      Pack<TY>::load(v, row + at);
#pragma unroll
      for (int i = 0; i < VEC; i++) f(v[i]);
    }
  } else {
    for (i64 at = me; at < count; at += threads) f(TY::load(row[at]));
  }
}

// What is kept of a part: `x` is the sum, the sum of squares, the extreme, or the mean; `y` the sum of squared distances from that mean.
struct Kept { float x, y; };

template <bool BLOCK, class F> DI float join(float v, F f) {
  if constexpr (BLOCK) return join_block(v, f);
  else return join_warp(v, f);
}

template <bool BLOCK> DI Kept reduce_part(const Element* row, i64 count, int me, int threads, bool packs, int op) {
  float v = 0.f;
  switch (op) {
    case MIN:
      v = infinity();
      for_each_element(row, count, me, threads, packs, [&](float e) { v = smaller(v, e); });
      return {join<BLOCK>(v, smaller), 0.f};
    case MAX:
      v = -infinity();
      for_each_element(row, count, me, threads, packs, [&](float e) { v = larger(v, e); });
      return {join<BLOCK>(v, larger), 0.f};
    case NORM:
      for_each_element(row, count, me, threads, packs, [&](float e) { v += e * e; });
      return {join<BLOCK>(v, plus), 0.f};
    default:
      for_each_element(row, count, me, threads, packs, [&](float e) { v += e; });
      v = join<BLOCK>(v, plus);
  }
  if (op == SUM || op == MEAN) return {v, 0.f};
  // Squared distances from the mean in a second pass: their sum cancels nothing.
  float mean = v / (float)count, squares = 0.f;
  for_each_element(row, count, me, threads, packs, [&](float e) { squares += (e - mean) * (e - mean); });
  return {mean, join<BLOCK>(squares, plus)};
}

// The result of a whole row.
DI float finish(Kept kept, i64 count, int op) {
  switch (op) {
    case MEAN: return kept.x / (float)count;
    case NORM: return sqrtf(kept.x);
    case VAR: return kept.y / (float)(count - 1);  // one element: 0 / 0
    case STD: return sqrtf(kept.y / (float)(count - 1));
    default: return kept.x;
  }
}

// A warp for each row, for short ones.
extern "C" __global__ void __launch_bounds__(256) reduce_short(Element* to, const Element* from, i64 rows, i64 count, int op) {
  after_others();
  i64 row = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  if (row >= rows) return;
  Kept kept = reduce_part<false>(from + row * count, count, threadIdx.x & 31, 32, count % VEC == 0, op);
  if ((threadIdx.x & 31) == 0) to[row] = TY::store(finish(kept, count, op));
}

// A block for each row.
extern "C" __global__ void __launch_bounds__(256) reduce_rows(Element* to, const Element* from, i64 count, int op) {
  after_others();
  i64 row = blockIdx.x;
  Kept kept = reduce_part<true>(from + row * count, count, threadIdx.x, 256, count % VEC == 0, op);
  if (threadIdx.x == 0) to[row] = TY::store(finish(kept, count, op));
}

// A block for each part of `each` elements (a multiple of VEC) of a long row; parts are (rows, splits, 2).
extern "C" __global__ void __launch_bounds__(256) reduce_parts(float* parts, const Element* from, i64 count, i64 each, int splits, int op) {
  after_others();
  i64 row = blockIdx.x / splits, first = (i64)(blockIdx.x % splits) * each;
  i64 size = count - first < each ? count - first : each;
  Kept kept = reduce_part<true>(from + row * count + first, size, threadIdx.x, 256, count % VEC == 0, op);
  if (threadIdx.x == 0) {
    parts[(i64)blockIdx.x * 2] = kept.x;
    parts[(i64)blockIdx.x * 2 + 1] = kept.y;
  }
}

// Joins the parts of a row, one after another; a thread for each row.
extern "C" __global__ void __launch_bounds__(256) reduce_join(Element* to, const float* parts, i64 rows, i64 count, i64 each, int splits, int op) {
  after_others();
  i64 row = thread_number();
  if (row >= rows) return;
  const float* part = parts + row * splits * 2;
  Kept all = {part[0], part[1]};
  i64 seen = count < each ? count : each;
  for (int i = 1; i < splits; i++) {
    float x = part[2 * i], y = part[2 * i + 1];
    i64 size = count - seen < each ? count - seen : each;
    switch (op) {
      case MIN: all.x = smaller(all.x, x); break;
      case MAX: all.x = larger(all.x, x); break;
      case STD:
      case VAR: {
        // Means and distances of two sets, joined (Chan and others 1979).
        float share = (float)size / (float)(seen + size), gap = x - all.x;
        all.y += y + gap * gap * (float)seen * share;
        all.x += gap * share;
        break;
      }
      default: all.x += x;
    }
    seen += size;
  }
  to[row] = TY::store(finish(all, count, op));
}
