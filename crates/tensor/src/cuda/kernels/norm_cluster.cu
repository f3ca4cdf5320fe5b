// Group norm of (items, pixels, channels) on Hopper, f16 and bf16, in one kernel: x is read once and kept in registers.
//
// A cluster of blocks makes a few groups of one item: as many as have whole 16 bytes together, a slice. Its blocks share the pixels, and read each other's sums
// from shared memory, so that nobody waits for blocks of other clusters. Sums are of differences from the first value of the group, in a fixed order. `y` may be `x`.
#include "packs.cuh"
#include "hopper.cuh"

typedef TY::Store Store;
constexpr int THREADS = 512, MOST_GROUPS = 8, MOST_COLUMNS = 32;

DI float2 read_from(u32 address, u32 rank) {
  float2 v;
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %2, %3; ld.shared::cluster.v2.f32 {%0, %1}, [r];}" : "=f"(v.x), "=f"(v.y) : "r"(address), "r"(rank) : "memory");
  return v;
}

// columns: 16 bytes of a pixel that a slice has; a group is at least 8 channels wide, so that 16 bytes reach over two groups at most. `per_block` pixels are no more
// than COUNT for each line of threads.
template <int BLOCKS, int COUNT> DI void group_norm(const Store* x, const float* weight, const float* bias, Store* y, int pixels, int channels, int width, int columns, int per_block, float eps, int act) {
  // [column][first or second group of it][line]
  extern __shared__ float2 parts[];
  __shared__ float2 series[2 * MOST_COLUMNS], mine[MOST_GROUPS], stats[MOST_GROUPS];
  const int tid = threadIdx.x, lines = THREADS / columns, line = tid / columns, column = tid - line * columns;
  const int rank = BLOCKS > 1 ? (int)cluster_rank() : 0, slice = blockIdx.x / BLOCKS, vectors = channels / 8, groups = columns * 8 / width;
  const int first = slice * columns * 8;   // channel
  const bool works = line < lines;
  const int from = rank * per_block + line, to = works ? min(pixels, (rank + 1) * per_block) : 0;
  const Store* picture = x + (i64)blockIdx.y * pixels * channels + first;
  const uint4* source = (const uint4*)picture + column;
  uint4 v[COUNT];
#pragma unroll
  for (int u = 0; u < COUNT; u++) v[u] = from + u * lines < to ? source[(i64)(from + u * lines) * vectors] : make_uint4(0, 0, 0, 0);
  // The first `split` of the eight channels are of group `near`, the others of the next.
  const int near = column * 8 / width, split = min(8, (near + 1) * width - column * 8);
  float origin[2] = { TY::load(picture[near * width]), split < 8 ? TY::load(picture[(near + 1) * width]) : 0.f };
  float s[2] = { 0.f, 0.f }, q[2] = { 0.f, 0.f };
#pragma unroll
  for (int u = 0; u < COUNT; u++)
    if (from + u * lines < to) {
      float f[8];
      unpack16<TY>(v[u], f);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        bool early = i < split;
        float t = f[i] - (early ? origin[0] : origin[1]);
        s[0] += early ? t : 0.f; q[0] += early ? t * t : 0.f;
        s[1] += early ? 0.f : t; q[1] += early ? 0.f : t * t;
      }
    }
  if (works) {
    parts[(2 * column) * lines + line] = make_float2(s[0], q[0]);
    parts[(2 * column + 1) * lines + line] = make_float2(s[1], q[1]);
  }
  __syncthreads();
  // One warp for the sums of all lines of a column's group.
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
    float2 t[2] = { stats[near], split < 8 ? stats[near + 1] : make_float2(0.f, 0.f) };
#pragma unroll
    for (int i = 0; i < 8; i++) {
      bool early = i < split;
      factor[i] *= early ? t[0].y : t[1].y;
      offset[i] -= (early ? t[0].x : t[1].x) * factor[i];
    }
    uint4* target = (uint4*)(y + (i64)blockIdx.y * pixels * channels + first) + column;
#pragma unroll
    for (int u = 0; u < COUNT; u++)
      if (from + u * lines < to) {
        float f[8];
        unpack16<TY>(v[u], f);
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = (f[i] - (i < split ? origin[0] : origin[1])) * factor[i] + offset[i];
        if (act == ACT_SILU) {
#pragma unroll
          for (int i = 0; i < 8; i++) f[i] = sigmoid_times(f[i], 1.f);
        }
        target[(i64)(from + u * lines) * vectors] = pack16<TY>(f);
      }
  }
  if (BLOCKS > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

#define KERNEL(name, BLOCKS, COUNT) extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1) name(const Store* x, const float* weight, const float* bias, Store* y, \
    int pixels, int channels, int width, int columns, int per_block, float eps, int act) { after_others(); \
  group_norm<BLOCKS, COUNT>(x, weight, bias, y, pixels, channels, width, columns, per_block, eps, act); \
}
KERNEL(group_1, 1, 8)
KERNEL(group_2, 2, 8)
