// Group norm of (items, pixels, channels) on Hopper, f16 and bf16, in one kernel: x is read once and kept in shared memory.
//
// A cluster of blocks makes a few groups of one item: as many as have whole 16 bytes together, a slice. Its blocks share the pixels, and read each other's sums
// from shared memory, so that nobody waits for blocks of other clusters. Sums are of differences from the first value of the group, in a fixed order. `y` may be `x`.
// The channels may lie in two places, the first `early` of them in `x` and the others in `x1`.
//
// Loops are not unrolled far: the code runs once, and is waited for like the data.
#include "packs.cuh"
#include "hopper.cuh"

typedef TY::Store Store;
constexpr int THREADS = 512, MOST_GROUPS = 8, MOST_COLUMNS = 32;

DI float2 read_from(u32 address, u32 rank) {
  float2 v;
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %2, %3; ld.shared::cluster.v2.f32 {%0, %1}, [r];}" : "=f"(v.x), "=f"(v.y) : "r"(address), "r"(rank) : "memory");
  return v;
}

// columns: 16 bytes of a pixel that a slice has; a group is at least 8 channels wide, so that 16 bytes reach over two groups at most. Shared memory has room for `per_block` pixels.
template <int BLOCKS> DI void group_norm(const Store* x, const Store* x1, int early, const float* weight, const float* bias, Store* y, int pixels, int channels, int width, int columns, int per_block, float eps, int act) {
  // All of it is of a size that is told: kernels with a part of their own may not have as much. Sums of lines are [column][first or second group of it][line], and then come
  // the vectors of every thread.
  extern __shared__ float2 room[];
  float2 *series = room, *mine = series + 2 * MOST_COLUMNS, *stats = mine + MOST_GROUPS, *parts = stats + MOST_GROUPS;
  const int tid = threadIdx.x, lines = THREADS / columns, line = tid / columns, column = tid - line * columns;
  const int rank = BLOCKS > 1 ? (int)cluster_rank() : 0, slice = blockIdx.x / BLOCKS, groups = columns * 8 / width;
  const int first = slice * columns * 8;   // channel
  const bool works = line < lines;
  const int from = rank * per_block + line, to = works ? min(pixels, (rank + 1) * per_block) : 0;
  // A channel of the first pixel, and the elements from one pixel to the next.
  auto place = [&](int channel, int& pitch) {
    bool is = channel < early;
    pitch = is ? early : channels - early;
    return (is ? x : x1) + (i64)blockIdx.y * pixels * pitch + (is ? channel : channel - early);
  };
  uint4* kept = (uint4*)(parts + 2 * columns * lines) + tid;
  int pitch, other;
  {
    const Store* source = place(first + column * 8, pitch);
    u32 to_kept = smem_u32(kept);
    after_others();
    for (int p = from; p < to; p += lines, to_kept += THREADS * 16) cp16(to_kept, source + (i64)p * pitch, 16);
    cp_commit();
  }
  // The first `split` of the eight channels are of group `near`, the others of the next.
  const int near = column * 8 / width, split = min(8, (near + 1) * width - column * 8);
  const float origin[2] = { TY::load(*place(first + near * width, other)), split < 8 ? TY::load(*place(first + (near + 1) * width, other)) : 0.f };
  float s[8], q[8];
#pragma unroll
  for (int i = 0; i < 8; i++) s[i] = q[i] = 0.f;
  cp_wait<0>();
  int k = 0;
#pragma unroll 1
  for (int p = from; p < to; p += lines, k++) {
    float f[8];
    unpack16<TY>(kept[k * THREADS], f);
#pragma unroll
    for (int i = 0; i < 8; i++) { float t = f[i] - (i < split ? origin[0] : origin[1]); s[i] += t; q[i] += t * t; }
  }
  if (works) {
    float2 sum[2] = { make_float2(0.f, 0.f), make_float2(0.f, 0.f) };
#pragma unroll
    for (int i = 0; i < 8; i++) {
      bool is = i < split;
      sum[0].x += is ? s[i] : 0.f; sum[0].y += is ? q[i] : 0.f;
      sum[1].x += is ? 0.f : s[i]; sum[1].y += is ? 0.f : q[i];
    }
    parts[(2 * column) * lines + line] = sum[0];
    parts[(2 * column + 1) * lines + line] = sum[1];
  }
  __syncthreads();
  // One warp for the sums of all lines of a column's group.
#pragma unroll 1
  for (int n = tid >> 5; n < 2 * columns; n += THREADS / 32) {
    float a = 0.f, b = 0.f;
    for (int k = tid & 31; k < lines; k += 32) { float2 t = parts[n * lines + k]; a += t.x; b += t.y; }
#pragma unroll
    for (int o = 16; o; o >>= 1) { a += shxf(a, o); b += shxf(b, o); }
    if ((tid & 31) == 0) series[n] = make_float2(a, b);
  }
  __syncthreads();
  if (tid < groups) {
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 1
    for (int c = 0; c < columns; c++) {
      int g = tid - c * 8 / width;
      if (g == 0 || (g == 1 && (c * 8 / width + 1) * width < c * 8 + 8)) { float2 t = series[2 * c + g]; sum.x += t.x; sum.y += t.y; }
    }
    mine[tid] = sum;
  }
  if (BLOCKS > 1) cluster_sync(); else __syncthreads();
  if (tid < groups) {
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int r = 0; r < BLOCKS; r++) { float2 t = BLOCKS > 1 ? read_from(smem_u32(mine + tid), r) : mine[tid]; sum.x += t.x; sum.y += t.y; }
    float share = 1.f / ((float)pixels * width), mean = sum.x * share;
    stats[tid] = make_float2(mean, rsqrtf(fmaxf(sum.y * share - mean * mean, 0.f) + eps));
  }
  __syncthreads();
  // All sums of other blocks have been read: they may end.
  if (BLOCKS > 1) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  if (works) {
    float factor[8], offset[8];
    const float4* w = (const float4*)(weight + first + column * 8);
    const float4* b = (const float4*)(bias + first + column * 8);
    *(float4*)factor = w[0]; *(float4*)(factor + 4) = w[1];
    *(float4*)offset = b[0]; *(float4*)(offset + 4) = b[1];
    const float2 t[2] = { stats[near], split < 8 ? stats[near + 1] : make_float2(0.f, 0.f) };
#pragma unroll
    for (int i = 0; i < 8; i++) {
      bool is = i < split;
      factor[i] *= is ? t[0].y : t[1].y;
      offset[i] -= ((is ? t[0].x : t[1].x) + (is ? origin[0] : origin[1])) * factor[i];
    }
    uint4* target = (uint4*)(y + (i64)blockIdx.y * pixels * channels + first) + column;
    const int vectors = channels / 8;
    k = 0;
#pragma unroll 1
    for (int p = from; p < to; p += lines, k++) {
      float f[8];
      unpack16<TY>(kept[k * THREADS], f);
#pragma unroll
      for (int i = 0; i < 8; i++) f[i] = f[i] * factor[i] + offset[i];
      if (act == ACT_SILU) {
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = sigmoid_times(f[i], 1.f);
      }
      target[(i64)p * vectors] = pack16<TY>(f);
    }
  }
  if (BLOCKS > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

#define KERNEL(name, BLOCKS) extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 2) name(const Store* x, const Store* x1, int early, const float* weight, const float* bias, Store* y, \
    int pixels, int channels, int width, int columns, int per_block, float eps, int act) { \
  group_norm<BLOCKS>(x, x1, early, weight, bias, y, pixels, channels, width, columns, per_block, eps, act); \
}
// The sizes are known to cuda/ops/norm.rs.
KERNEL(group_1, 1)
KERNEL(group_2, 2)
KERNEL(group_4, 4)
KERNEL(group_8, 8)

// The same where the products that made the channels left the sums and the sums of squares of every UNIT of them, for `parts` of the pixels each (staged.cuh): they are added, and nobody waits for others.
// A thread has the same 16 bytes of up to KNOWN pixels, which it asks for first, and finishes two at a time: code for all of them at once would take longer to come than to run.
// Shared memory: 8 bytes for each group. Threads are whole warps.
constexpr int UNIT = 10, KNOWN = 8;
extern "C" __global__ void __maxnreg__(72) group_known(const Store* x, const Store* x1, int early, const float2* known, int parts, const float2* known1, int parts1, const float* weight, const float* bias, Store* y,
    int pixels, int channels, int width, int per_block, float eps, int act) {
  extern __shared__ float2 stats[];   // mean, 1 / deviation
  const int tid = threadIdx.x, threads = blockDim.x, vectors = channels / 8, lines = quotient(threads, vectors), line = quotient(tid, vectors), column = tid - line * vectors, item = blockIdx.y;
  const int late = channels - early, units = early / UNIT, units1 = late / UNIT, groups = quotient(channels, width), each = width / UNIT;
  const bool is = column * 8 < early;
  const int pitch = is ? early : late;
  const Store* source = (is ? x : x1) + (i64)item * pixels * pitch + (is ? column * 8 : column * 8 - early);
  const int from = blockIdx.x * per_block + line, to = line < lines ? min(pixels, (int)(blockIdx.x + 1) * per_block) : 0;
  after_others();
  uint4 v[KNOWN];
#pragma unroll
  for (int k = 0; k < KNOWN; k++) {
    int p = from + k * lines;
    v[k] = make_uint4(0, 0, 0, 0);
    if (p < to) v[k] = *(const uint4*)(source + (i64)p * pitch);
  }
  // Eight threads for a group, all of a warp for four of them.
#pragma unroll 1
  for (int g0 = 0; g0 < groups; g0 += threads >> 3) {
    const int g = g0 + (tid >> 3), unit = g * each;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
      const int many = which ? parts1 : parts, wide = which ? units1 : units, first = which ? max(unit - units, 0) : unit, last = g < groups ? min(unit + each - (which ? units : 0), wide) : 0;
      const float2* of = (which ? known1 : known) + (i64)item * many * wide;
#pragma unroll 1
      for (int u = first; u < last; u++) {
#pragma unroll 4
        for (int p = tid & 7; p < many; p += 8) { float2 t = of[p * wide + u]; sum.x += t.x; sum.y += t.y; }
      }
    }
#pragma unroll
    for (int o = 4; o; o >>= 1) { sum.x += shxf(sum.x, o); sum.y += shxf(sum.y, o); }
    float share = 1.f / ((float)pixels * width), mean = sum.x * share;
    if (g < groups && (tid & 7) == 0) stats[g] = make_float2(mean, rsqrtf(fmaxf(sum.y * share - mean * mean, 0.f) + eps));
  }
  __syncthreads();
  if (line >= lines) return;
  float factor[8], offset[8];
  const float4* w = (const float4*)(weight + column * 8);
  const float4* b = (const float4*)(bias + column * 8);
  *(float4*)factor = w[0]; *(float4*)(factor + 4) = w[1];
  *(float4*)offset = b[0]; *(float4*)(offset + 4) = b[1];
  int group = quotient(column * 8, width), left = (group + 1) * width - column * 8;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float2 t = stats[group];
    factor[i] *= t.y;
    offset[i] -= t.x * factor[i];
    if (--left == 0) { group++; left = width; }
  }
  uint4* target = (uint4*)(y + (i64)item * pixels * channels) + column;
#pragma unroll 1
  for (int p = from; p < to; p += 2 * lines) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      float f[8];
      unpack16<TY>(v[k], f);
#pragma unroll
      for (int i = 0; i < 8; i++) f[i] = f[i] * factor[i] + offset[i];
      if (act == ACT_SILU) {
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = sigmoid_times(f[i], 1.f);
      }
      if (p + k * lines < to) target[(i64)(p + k * lines) * vectors] = pack16<TY>(f);
    }
#pragma unroll
    for (int k = 0; k < KNOWN - 2; k++) v[k] = v[k + 2];
  }
}
