// Inputs of products as bytes: each row with a scale of its own, as whole numbers (formats/rows.rs, cpu/integer.rs) or as E4M3.
#include "common.cuh"

typedef TY::Store S;
constexpr int THREADS = 256;

// The largest magnitude of a block's numbers, by its bits: they compare like the numbers, and what is no number is above them all. `parts` is shared memory with
// a word for each warp; all of it is asked for at the start, because what a kernel has of its own would count against the most that it may ask for.
DI u32 most_of_block(u32 most, u32* parts) {
  for (int m = 16; m; m >>= 1) most = max(most, shx(most, m));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; i++) most = max(most, parts[i]);
  return most;
}
DI u32 magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }
DI float nothing() { return __uint_as_float(0x7fc00000u); }

// Whole numbers up to `levels`, rounded to even; the scales of cpu/integer.rs.
struct Whole {
  DI static float scale(u32 most, float levels) {
    if (most >= 0x7f800000u) return nothing();
    float m = __uint_as_float(most);
    return levels < 127.f ? fmaxf(m, 1e-10f) / levels : fmaxf(m / levels, 1e-30f);
  }
  // What is no number becomes any: its row has a scale that is none.
  DI static u32 four(const float* v, float scale) {
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) word |= ((u32)__float2int_rn(v[i] / scale) & 255u) << (8 * i);
    return word;
  }
};
#if __CUDA_ARCH__ >= 900
// E4M3 with the largest number of the row at the largest there is, 448.
struct Float8 {
  DI static float scale(u32 most, float) { return most >= 0x7f800000u ? nothing() : fmaxf(__uint_as_float(most) / 448.f, 1e-30f); }
  DI static u32 four(const float* v, float scale) {
    float by = 1.f / scale;
    u16 lo, hi;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(v[1] * by), "f"(v[0] * by));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(v[3] * by), "f"(v[2] * by));
    return (u32)lo | (u32)hi << 16;
  }
};
#endif

// Rows of `left` columns of `a` and then of `right` columns of `b`, whose rows are `step` long; both multiples of 8. Each column may have a factor.
struct Source { const S* a; const S* b; const float* factors; int left, right; i64 step; };
DI void load8(float (&v)[8], const Source& s, i64 row, int column) {
  const S* from = column < s.left ? s.a + row * s.left + column : s.b + row * s.step + (column - s.left);
  uint4 w = *(const uint4*)from;
  v[0] = TY::lo(w.x); v[1] = TY::hi(w.x); v[2] = TY::lo(w.y); v[3] = TY::hi(w.y);
  v[4] = TY::lo(w.z); v[5] = TY::hi(w.z); v[6] = TY::lo(w.w); v[7] = TY::hi(w.w);
  if (s.factors) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= s.factors[column + i];
  }
}

// One block for each row, which is read twice: the second time from the cache.
template <class B> DI void to_bytes(const Source& s, u8* to, float* scales, float levels) {
  extern __shared__ float room[];
  const i64 row = blockIdx.x;
  const int columns = s.left + s.right;
  u32 most = 0;
  for (int c = threadIdx.x * 8; c < columns; c += THREADS * 8) {
    float v[8];
    load8(v, s, row, c);
#pragma unroll
    for (int i = 0; i < 8; i++) most = max(most, magnitude(v[i]));
  }
  const float scale = B::scale(most_of_block(most, (u32*)room), levels);
  if (threadIdx.x == 0) scales[row] = scale;
  for (int c = threadIdx.x * 8; c < columns; c += THREADS * 8) {
    float v[8];
    load8(v, s, row, c);
    *(uint2*)(to + row * columns + c) = make_uint2(B::four(v, scale), B::four(v + 4, scale));
  }
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
  const float scale = B::scale(most_of_block(most, (u32*)(v + columns)), levels);
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
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __launch_bounds__(THREADS) e4m3(PARAMETERS) {
  after_others();
  SOURCE
  to_bytes<Float8>(source, to, scales, levels);
}
#endif
