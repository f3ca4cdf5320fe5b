// Rows and their norms, for kernels that do different things with them.
//
// NVRTC defines for a build: TY = F32, F16 or BF16.
#pragma once
#include "packs.cuh"
typedef TY T;
typedef TY::Store Store;
constexpr int N = LANES16<T>;

DI void unpack(uint4 v, float (&f)[N]) { unpack16<T>(v, f); }
DI uint4 pack(const float (&f)[N]) { return pack16<T>(f); }
DI uint4 load16(const Store* p) { return *(const uint4*)p; }
// N floats of a weight, 16 bytes at a time: one by one, neighbours would read 32 bytes apart.
DI void load_floats16(float (&f)[N], const float* p) {
#pragma unroll
  for (int i = 0; i < N; i += 4) { float4 v = *(const float4*)(p + i); f[i] = v.x; f[i + 1] = v.y; f[i + 2] = v.z; f[i + 3] = v.w; }
}

template <int LANES> DI float lane_sum(float v) {
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) v += shxf(v, o);
  return v;
}
// Over a block of WARPS warps; every thread gets the result. `room` has a float for every warp and is free again after the call.
template <int WARPS> DI float block_sum(float v, float* room) {
  v = lane_sum<32>(v);
  if (WARPS == 1) return v;
  if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = v;
  __syncthreads();
  v = 0.f;
#pragma unroll
  for (int i = 0; i < WARPS; i++) v += room[i];
  __syncthreads();
  return v;
}

// ---- layer norm and RMS norm of rows ----
//
// Weight and bias (f32) may be null. `scale` and `shift` (both or neither) have a row for every `each` rows of x: y = normal * (1 + scale) + shift.

#define NORM_PARAMETERS const float *weight, const float *bias, const Store *scale, const Store *shift, int rows, int width, int each, float eps, int rms
#define NORM_ARGUMENTS weight, bias, scale, shift, rows, width, each, eps, rms

// A row is spread over LANES threads of a warp, or over WARPS warps (a block of them); each has COUNT vectors of it in `v`, and `use(i, vector)` is told what
// becomes of them. Of a row behind the last nothing is told.
template <int LANES, int WARPS, int COUNT, class Use>
DI void norm_row(uint4 (&v)[COUNT], i64 row, const Store* x, NORM_PARAMETERS, Use use) {
  // Each sum has a room of its own, so that nobody waits until one is free again.
  __shared__ float room[2][WARPS];
  constexpr int THREADS = LANES * WARPS;
  int lane = threadIdx.x % THREADS;
  bool there = row < rows;
  int vectors = width / N;
  const uint4* source = (const uint4*)(x + (there ? row : 0) * width);
  auto sum = [&](float v, int which) {
    v = lane_sum<WARPS == 1 ? LANES : 32>(v);
    if (WARPS == 1) return v;
    if ((threadIdx.x & 31) == 0) room[which][threadIdx.x >> 5] = v;
    __syncthreads();
    v = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) v += room[which][i];
    return v;
  };
  float s = 0.f, q = 0.f, mean = 0.f, share = 1.f / width;
#pragma unroll
  for (int i = 0; i < COUNT; i++) v[i] = i * THREADS + lane < vectors ? source[i * THREADS + lane] : make_uint4(0, 0, 0, 0);
  // Weight and bias come meanwhile where there is room for them.
  constexpr bool EARLY = COUNT <= 5;
  float w[EARLY ? COUNT : 1][N], o[EARLY ? COUNT : 1][N];
  if (EARLY) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      int c = (i * THREADS + lane) * N;
#pragma unroll
      for (int e = 0; e < N; e++) { w[i][e] = 1.f; o[i][e] = 0.f; }
      if (weight && c < width) load_floats16(w[i], weight + c);
      if (bias && c < width) load_floats16(o[i], bias + c);
    }
  }
  // The mean is that of differences from the first value.
  float origin = rms ? 0.f : T::load(*(const Store*)source);
  if (!rms) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      if (i * THREADS + lane < vectors) {
        float f[N];
        unpack(v[i], f);
#pragma unroll
        for (int e = 0; e < N; e++) s += f[e] - origin;
      }
    mean = sum(s, 0) * share;
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    if (i * THREADS + lane < vectors) {
      float f[N];
      unpack(v[i], f);
#pragma unroll
      for (int e = 0; e < N; e++) { float t = f[e] - origin - mean; q += t * t; }
    }
  float factor = rsqrtf(sum(q, 1) * share + eps);
  if (!there) return;
  i64 modulation = scale ? (i64)quotient((int)row, each) * width : 0;
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    if (i * THREADS + lane < vectors) {
      int c = (i * THREADS + lane) * N;
      float f[N], a[N], b[N];
      unpack(v[i], f);
#pragma unroll
      for (int e = 0; e < N; e++) f[e] = (f[e] - origin - mean) * factor;
      if (EARLY) {
#pragma unroll
        for (int e = 0; e < N; e++) f[e] = f[e] * w[i][e] + o[i][e];
      }
      if (!EARLY && weight) {
        load_floats16(a, weight + c);
#pragma unroll
        for (int e = 0; e < N; e++) f[e] *= a[e];
      }
      if (!EARLY && bias) {
        load_floats16(b, bias + c);
#pragma unroll
        for (int e = 0; e < N; e++) f[e] += b[e];
      }
      if (scale) {
        unpack(load16(scale + modulation + c), a);
        unpack(load16(shift + modulation + c), b);
#pragma unroll
        for (int e = 0; e < N; e++) f[e] = f[e] * (1.f + a[e]) + b[e];
      }
      use(i, pack(f));
    }
}
