// Numbers as bytes with a scale for each row: whole numbers (formats/rows.rs, cpu/integer.rs) or E4M3.
#pragma once
#include "common.cuh"

// Magnitudes by their bits: they compare like the numbers, and what is no number is above them all.
DI u32 magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }
DI float nothing() { return __uint_as_float(0x7fc00000u); }

// The largest magnitude of a block of WARPS warps. `parts` is shared memory with a word for each warp.
template <int WARPS> DI u32 most_of_block(u32 most, u32* parts) {
  for (int m = 16; m; m >>= 1) most = max(most, shx(most, m));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
  __syncthreads();
  for (int i = 0; i < WARPS; i++) most = max(most, parts[i]);
  return most;
}

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
#if __CUDA_ARCH__ >= 890
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
