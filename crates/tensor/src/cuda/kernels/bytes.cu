// Inputs of products as bytes: each row with a scale of its own.
#include "rounding.cuh"

typedef TY::Store S;
constexpr int THREADS = 256;

// Rows of `left` columns of `a` and then of `right` columns of `b`, whose rows are `step` long; both multiples of 8. Each column may have a factor.
struct Source { const S* a; const S* b; const float* factors; int left, right; i64 step; };
DI uint4 load16(const Source& s, i64 row, int column) {
  return *(const uint4*)(column < s.left ? s.a + row * s.left + column : s.b + row * s.step + (column - s.left));
}
DI void unpack8(float (&v)[8], uint4 w, const Source& s, int column) {
  v[0] = TY::lo(w.x); v[1] = TY::hi(w.x); v[2] = TY::lo(w.y); v[3] = TY::hi(w.y);
  v[4] = TY::lo(w.z); v[5] = TY::hi(w.z); v[6] = TY::lo(w.w); v[7] = TY::hi(w.w);
  if (s.factors) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= s.factors[column + i];
  }
}
DI void load8(float (&v)[8], const Source& s, i64 row, int column) { unpack8(v, load16(s, row, column), s, column); }

// One block for each row. A thread keeps COUNT pieces of it; the rest, if there is one, is read twice, the second time from the cache.
template <class B> DI void to_bytes(const Source& s, u8* to, float* scales, float levels) {
  extern __shared__ float room[];
  constexpr int COUNT = 8;
  const i64 row = blockIdx.x;
  const int columns = s.left + s.right, first = threadIdx.x * 8, rest = first + COUNT * THREADS * 8;
  uint4 kept[COUNT];
  u32 most = 0;
  auto look = [&](uint4 w, int c) {
    float v[8];
    unpack8(v, w, s, c);
#pragma unroll
    for (int i = 0; i < 8; i++) most = max(most, magnitude(v[i]));
  };
#pragma unroll
  for (int u = 0; u < COUNT; u++)
    if (int c = first + u * THREADS * 8; c < columns) kept[u] = load16(s, row, c);
#pragma unroll
  for (int u = 0; u < COUNT; u++)
    if (int c = first + u * THREADS * 8; c < columns) look(kept[u], c);
  for (int c = rest; c < columns; c += THREADS * 8) look(load16(s, row, c), c);
  const float scale = B::scale(most_of_block<THREADS / 32>(most, (u32*)room), levels);
  if (threadIdx.x == 0) scales[row] = scale;
  auto write = [&](uint4 w, int c) {
    float v[8];
    unpack8(v, w, s, c);
    *(uint2*)(to + row * columns + c) = make_uint2(B::four(v, scale), B::four(v + 4, scale));
  };
#pragma unroll
  for (int u = 0; u < COUNT; u++)
    if (int c = first + u * THREADS * 8; c < columns) write(kept[u], c);
  for (int c = rest; c < columns; c += THREADS * 8) write(load16(s, row, c), c);
}
// The same with groups of columns rotated first by the matrix of formats/rotation.rs, in shared memory for a row of floats and the parts.
template <class B> DI void to_rotated_bytes(const Source& s, u8* to, float* scales, float levels, int group) {
  extern __shared__ float room[];
  float* v = room;
  const i64 row = blockIdx.x;
  const int columns = s.left + s.right;
  for (int c = threadIdx.x * 8; c < columns; c += THREADS * 8) {
    float part[8];
    load8(part, s, row, c);
#pragma unroll
    for (int i = 0; i < 8; i++) v[c + i] = part[i];
  }
  __syncthreads();
  for (int n = 1; n < group; n *= 4) {
    for (int i = threadIdx.x; i < columns / 4; i += THREADS) {
      int first = i / n * 4 * n + i % n;
      float a = v[first], b = v[first + n], c = v[first + 2 * n], d = v[first + 3 * n], half = 0.5f * ((a + b) + (c + d));
      v[first] = half - d; v[first + n] = half - c; v[first + 2 * n] = half - b; v[first + 3 * n] = half - a;
    }
    __syncthreads();
  }
  u32 most = 0;
  for (int c = threadIdx.x; c < columns; c += THREADS) most = max(most, magnitude(v[c]));
  const float scale = B::scale(most_of_block<THREADS / 32>(most, (u32*)(v + columns)), levels);
  if (threadIdx.x == 0) scales[row] = scale;
  for (int c = threadIdx.x * 4; c < columns; c += THREADS * 4) *(u32*)(to + row * columns + c) = B::four(v + c, scale);
}

#define PARAMETERS const S* a, const S* b, const float* factors, u8* to, float* scales, int left, int right, i64 step, float levels, int group
#define SOURCE const Source source = { a, b, factors, left, right, step };
extern "C" __global__ void __launch_bounds__(THREADS) whole_numbers(PARAMETERS) {
  after_others();
  SOURCE
  to_bytes<Whole>(source, to, scales, levels);
}
extern "C" __global__ void __launch_bounds__(THREADS) rotated_whole_numbers(PARAMETERS) {
  after_others();
  SOURCE
  to_rotated_bytes<Whole>(source, to, scales, levels, group);
}
#if __CUDA_ARCH__ >= 890
extern "C" __global__ void __launch_bounds__(THREADS) e4m3(PARAMETERS) {
  after_others();
  SOURCE
  to_bytes<Float8>(source, to, scales, levels);
}
#endif
