// Normalisation, softmax of rows, and what transformers do between their layers: all bound by memory.
//
// Sums are taken of differences from a value of the data, or in two passes, so that data far from zero keep their variance. Their order is
// fixed. Kernels with `_any` in their names take every width and every address; the others need rows of whole 16 bytes.
//
// NVRTC defines for a build: TY = F32, F16 or BF16.
#include "row_norm.cuh"
constexpr int GROUP_THREADS = N == 8 ? 512 : 1024;   // most of a block of the kernels of group norm

template <int LANES> DI float lane_max(float v) {
#pragma unroll
  for (int o = LANES / 2; o; o >>= 1) v = fmaxf(v, shxf(v, o));
  return v;
}
template <int WARPS> DI float block_max(float v, float* room) {
  v = lane_max<32>(v);
  if (WARPS == 1) return v;
  if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = v;
  __syncthreads();
  v = room[0];
#pragma unroll
  for (int i = 1; i < WARPS; i++) v = fmaxf(v, room[i]);
  __syncthreads();
  return v;
}

// ---- group norm of (items, pixels, channels) ----
//
// First `group_sums`: each block adds up some pixels and writes two sums for every group: [item][group][block]. Where those are many,
// `group_join` adds them. Then `group_apply`, whose blocks add the rest before they start.

// The groups of N neighbouring channels, with one division.
DI void groups_of(int (&group)[N], int first, int width) {
  int g = first / width, rest = (g + 1) * width - first;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (rest == 0) { g++; rest = width; }
    group[i] = g;
    rest--;
  }
}
// Sums over parts of groups, eight threads for each group: `part(g, k)` for k below `count` is added, and `use(g, sum)` is called by one
// thread. Whole warps only: the last one may be a part.
template <class Part, class Use> DI void sum_groups(int groups, int count, Part part, Use use) {
  int tid = threadIdx.x, warps = blockDim.x >> 5, lane = tid & 7;
  if ((tid >> 5) >= warps) return;
  for (int first = 0; first < groups; first += 4 * warps) {
    int g = first + (tid >> 3);
    float a = 0.f, b = 0.f;
    if (g < groups)
#pragma unroll 4
      for (int k = lane; k < count; k += 8) { float2 t = part(g, k); a += t.x; b += t.y; }
    a = lane_sum<8>(a);
    b = lane_sum<8>(b);
    if (lane == 0 && g < groups) use(g, make_float2(a, b));
  }
}

// A block has a thread for each 16 bytes of a pixel, `lines` times: (channels / N) * lines threads. Shared memory: 2 floats per thread and N.
// The origin of the sums is the first value of the group in its picture.
// The channels may lie in two places: the first `early` of them in `x`, and the others in `x1`. Where a channel of the first pixel of an item is, and the elements from one pixel
// to the next.
DI const Store* place_of(const Store* x, const Store* x1, int early, int channels, int item, int pixels, int channel, int& pitch) {
  bool is = channel < early;
  pitch = is ? early : channels - early;
  return (is ? x : x1) + (i64)item * pixels * pitch + (is ? channel : channel - early);
}
extern "C" __global__ void __launch_bounds__(GROUP_THREADS) group_sums(const Store* x, const Store* x1, int early, float2* sums, float* origins, int pixels, int channels, int groups, int per_block) {
  after_others();
  extern __shared__ float2 room[];
  int vectors = channels / N, lines = blockDim.x / vectors, tid = threadIdx.x, column = tid % vectors, line = tid / vectors;
  int item = blockIdx.y, blocks = gridDim.x, width = channels / groups;
  int from = blockIdx.x * per_block, to = min(pixels, from + per_block), pitch, other;
  const uint4* source = (const uint4*)place_of(x, x1, early, channels, item, pixels, column * N, pitch);
  const int step = pitch / N;
  float origin[N], s[N], q[N];
  int group[N];
  groups_of(group, column * N, width);
#pragma unroll
  for (int i = 0; i < N; i++) {
    origin[i] = T::load(*place_of(x, x1, early, channels, item, pixels, group[i] * width, other));
    s[i] = q[i] = 0.f;
  }
  if (blockIdx.x == 0)
    for (int g = tid; g < groups; g += blockDim.x) origins[(i64)item * groups + g] = T::load(*place_of(x, x1, early, channels, item, pixels, g * width, other));
  auto add = [&](uint4 v) {
    float f[N];
    unpack(v, f);
#pragma unroll
    for (int i = 0; i < N; i++) { float t = f[i] - origin[i]; s[i] += t; q[i] += t * t; }
  };
  int p = from + line;
  for (; p + 3 * lines < to; p += 4 * lines) {
    uint4 v[4];
#pragma unroll
    for (int u = 0; u < 4; u++) v[u] = source[(i64)(p + u * lines) * step];
#pragma unroll
    for (int u = 0; u < 4; u++) add(v[u]);
  }
  for (; p < to; p += lines) add(source[(i64)p * step]);
  // Element i of column v of a line is at i * vectors + v: neighbours write to neighbours.
#pragma unroll
  for (int i = 0; i < N; i++) room[(line * N + i) * vectors + column] = make_float2(s[i], q[i]);
  __syncthreads();
  for (int c = tid; c < channels; c += blockDim.x) {
    float2 sum = room[c];
    for (int k = 1; k < lines; k++) { float2 t = room[k * channels + c]; sum.x += t.x; sum.y += t.y; }
    room[c] = sum;
  }
  __syncthreads();
  sum_groups(
      groups, width, [&](int g, int k) { int c = g * width + k; return room[c % N * vectors + c / N]; },
      [&](int g, float2 sum) { sums[((i64)item * groups + g) * blocks + blockIdx.x] = sum; });
}

// A warp for each group of each item: `blocks` pairs of sums become one.
extern "C" __global__ void __launch_bounds__(256) group_join(const float2* sums, float2* joined, int count, int blocks) {
  after_others();
  int g = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (g >= count) return;
  float a = 0.f, b = 0.f;
  for (int k = lane; k < blocks; k += 32) { float2 t = sums[(i64)g * blocks + k]; a += t.x; b += t.y; }
  a = lane_sum<32>(a);
  b = lane_sum<32>(b);
  if (lane == 0) joined[g] = make_float2(a, b);
}

// Shared memory: 2 floats per group; threads as in `group_sums`. `y` may be `x`: the origins
// are read from a copy, because another block may have written the first pixel.
template <int ACT>
DI void group_apply(const Store* x, const Store* x1, int early, const float2* sums, const float* origins, const float* weight, const float* bias, Store* y,
                    int pixels, int channels, int groups, int per_block, int blocks, float eps, int act) {
  extern __shared__ float2 statistics[];   // mean less origin, 1 / deviation
  int vectors = channels / N, lines = blockDim.x / vectors, tid = threadIdx.x, column = tid % vectors, line = tid / vectors;
  int item = blockIdx.y, width = channels / groups;
  int from = blockIdx.x * per_block, to = min(pixels, from + per_block);
  sum_groups(
      groups, blocks, [&](int g, int k) { return sums[((i64)item * groups + g) * blocks + k]; },
      [&](int g, float2 sum) {
        float share = 1.f / ((float)pixels * width), mean = sum.x * share;
        statistics[g] = make_float2(mean, rsqrtf(fmaxf(sum.y * share - mean * mean, 0.f) + eps));
      });
  __syncthreads();
  float factor[N], origin[N], offset[N];
  load_floats16(factor, weight + column * N);
  load_floats16(offset, bias + column * N);
  int group[N];
  groups_of(group, column * N, width);
#pragma unroll
  for (int i = 0; i < N; i++) {
    float2 s = statistics[group[i]];
    origin[i] = origins[(i64)item * groups + group[i]];
    factor[i] *= s.y;
    offset[i] -= s.x * factor[i];
  }
  int pitch;
  const uint4* source = (const uint4*)place_of(x, x1, early, channels, item, pixels, column * N, pitch);
  const int step = pitch / N;
  uint4* target = (uint4*)(y + (i64)item * pixels * channels) + column;
  // The origin is taken off first: a product of a large mean would cost digits.
  auto one = [&](uint4 v) {
    float f[N];
    unpack(v, f);
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = activate((f[i] - origin[i]) * factor[i] + offset[i], ACT < 0 ? act : ACT);
    return pack(f);
  };
  int p = from + line;
  for (; p + 3 * lines < to; p += 4 * lines) {
    uint4 v[4];
#pragma unroll
    for (int u = 0; u < 4; u++) v[u] = source[(i64)(p + u * lines) * step];
#pragma unroll
    for (int u = 0; u < 4; u++) target[(i64)(p + u * lines) * vectors] = one(v[u]);
  }
  for (; p < to; p += lines) target[(i64)p * vectors] = one(source[(i64)p * step]);
}

#define GROUP_APPLY(name, ACT, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(GROUP_THREADS, N == 8 ? BLOCKS : 1) name(const Store* x, const Store* x1, int early, const float2* sums, const float* origins, const float* weight, const float* bias, Store* y, int pixels, int channels, int groups, int per_block, int blocks, float eps, int act) { after_others(); \
    group_apply<ACT>(x, x1, early, sums, origins, weight, bias, y, pixels, channels, groups, per_block, blocks, eps, act); }
GROUP_APPLY(group_apply_none, ACT_NONE, 1)
GROUP_APPLY(group_apply_silu, ACT_SILU, 2)
GROUP_APPLY(group_apply_act, -1, 1)

// The same in one kernel, for what all multiprocessors together keep in registers: x is read once, and the blocks of an item meet between
// the halves. All blocks must run at once (launched cooperatively). Threads and shared memory as in `group_sums`; at most 512, and at most
// COUNT vectors for each. `y` may be `x`.
constexpr int MEETINGS = 64;   // most items
__device__ u32 met[MEETINGS], meeting[MEETINGS];

// Waits until all `blocks` of an item are here. One thread of each block calls it. The number of the meeting cannot change before everyone
// has come, so it may be read first; the last to come makes the next meeting possible before it ends this one.
DI void meet(int item, u32 blocks) {
  volatile u32* number = meeting + item;
  u32 before = *number;
  __threadfence();
  if (atomicAdd(met + item, 1u) == blocks - 1) {
    met[item] = 0;
    __threadfence();
    *number = before + 1;
  } else {
    while (*number == before) {}
  }
  __threadfence();
}

template <int ACT>
DI void group_whole(const Store* x, float2* sums, const float* weight, const float* bias, Store* y, int pixels, int channels, int groups, int per_block, float eps) {
  constexpr int COUNT = 8;
  extern __shared__ float2 room[];
  int vectors = channels / N, lines = blockDim.x / vectors, tid = threadIdx.x, column = tid % vectors, line = tid / vectors;
  int item = blockIdx.y, blocks = gridDim.x, width = channels / groups;
  int from = blockIdx.x * per_block + line, to = min(pixels, (int)(blockIdx.x + 1) * per_block);
  const Store* picture = x + (i64)item * pixels * channels;
  const uint4* source = (const uint4*)picture + column;
  uint4 v[COUNT];
#pragma unroll
  for (int u = 0; u < COUNT; u++) v[u] = from + u * lines < to ? source[(i64)(from + u * lines) * vectors] : make_uint4(0, 0, 0, 0);
  float origin[N], s[N], q[N];
  int group[N];
  groups_of(group, column * N, width);
#pragma unroll
  for (int i = 0; i < N; i++) {
    origin[i] = T::load(picture[group[i] * width]);
    s[i] = q[i] = 0.f;
  }
#pragma unroll
  for (int u = 0; u < COUNT; u++)
    if (from + u * lines < to) {
      float f[N];
      unpack(v[u], f);
#pragma unroll
      for (int i = 0; i < N; i++) { float t = f[i] - origin[i]; s[i] += t; q[i] += t * t; }
    }
#pragma unroll
  for (int i = 0; i < N; i++) room[(line * N + i) * vectors + column] = make_float2(s[i], q[i]);
  __syncthreads();
  for (int c = tid; c < channels; c += blockDim.x) {
    float2 sum = room[c];
    for (int k = 1; k < lines; k++) { float2 t = room[k * channels + c]; sum.x += t.x; sum.y += t.y; }
    room[c] = sum;
  }
  __syncthreads();
  sum_groups(
      groups, width, [&](int g, int k) { int c = g * width + k; return room[c % N * vectors + c / N]; },
      [&](int g, float2 sum) { sums[((i64)item * groups + g) * blocks + blockIdx.x] = sum; __threadfence(); });
  __syncthreads();
  if (tid == 0) meet(item, blocks);
  __syncthreads();
  // The sums in shared memory have been read; the statistics of the groups take their place.
  sum_groups(
      groups, blocks,
      [&](int g, int k) { const volatile float* p = (const volatile float*)(sums + ((i64)item * groups + g) * blocks + k); return make_float2(p[0], p[1]); },
      [&](int g, float2 sum) {
        float share = 1.f / ((float)pixels * width), mean = sum.x * share;
        room[g] = make_float2(mean, rsqrtf(fmaxf(sum.y * share - mean * mean, 0.f) + eps));
      });
  __syncthreads();
  float factor[N], offset[N];
  load_floats16(factor, weight + column * N);
  load_floats16(offset, bias + column * N);
#pragma unroll
  for (int i = 0; i < N; i++) {
    float2 t = room[group[i]];
    factor[i] *= t.y;
    offset[i] -= t.x * factor[i];
  }
  uint4* target = (uint4*)(y + (i64)item * pixels * channels) + column;
#pragma unroll
  for (int u = 0; u < COUNT; u++)
    if (from + u * lines < to) {
      float f[N];
      unpack(v[u], f);
#pragma unroll
      for (int i = 0; i < N; i++) f[i] = activate((f[i] - origin[i]) * factor[i] + offset[i], ACT);
      target[(i64)(from + u * lines) * vectors] = pack(f);
    }
}
extern "C" __global__ void __launch_bounds__(512, 1) group_whole_none(const Store* x, float2* sums, const float* weight, const float* bias, Store* y, int pixels, int channels, int groups, int per_block, float eps) {
  after_others();
  group_whole<ACT_NONE>(x, sums, weight, bias, y, pixels, channels, groups, per_block, eps);
}
extern "C" __global__ void __launch_bounds__(512, 1) group_whole_silu(const Store* x, float2* sums, const float* weight, const float* bias, Store* y, int pixels, int channels, int groups, int per_block, float eps) {
  after_others();
  group_whole<ACT_SILU>(x, sums, weight, bias, y, pixels, channels, groups, per_block, eps);
}

// One block of 512 threads for each group of each item: every number of channels, in three passes. `y` may be `x`.
extern "C" __global__ void __launch_bounds__(512) group_any(const Store* x, const float* weight, const float* bias, Store* y, int pixels, int channels, int groups, float eps, int act) {
  after_others();
  __shared__ float room[16];
  int width = channels / groups, item = blockIdx.x / groups, g = blockIdx.x - item * groups, tid = threadIdx.x;
  i64 start = (i64)item * pixels * channels + (i64)g * width;
  int across = min(width, 512), lines = 512 / across, column = tid % across, line = tid / across;
  int from = line < lines ? line : pixels;
  float origin = T::load(x[start]), share = 1.f / ((float)pixels * width), s = 0.f;
  for (int p = from; p < pixels; p += lines)
    for (int k = column; k < width; k += across) s += T::load(x[start + (i64)p * channels + k]) - origin;
  float mean = block_sum<16>(s, room) * share, q = 0.f;   // less the origin
  for (int p = from; p < pixels; p += lines)
    for (int k = column; k < width; k += across) { float t = T::load(x[start + (i64)p * channels + k]) - origin - mean; q += t * t; }
  float factor = rsqrtf(block_sum<16>(q, room) * share + eps);
  for (int p = from; p < pixels; p += lines)
    for (int k = column; k < width; k += across) {
      i64 place = start + (i64)p * channels + k;
      int c = g * width + k;
      y[place] = T::store(activate((T::load(x[place]) - origin - mean) * factor * weight[c] + bias[c], act));
    }
}

// ---- layer norm and RMS norm of rows ----

#define ROW_PARAMETERS const Store *x, Store *y, NORM_PARAMETERS

template <int LANES, int WARPS, int COUNT>
DI void row_norm(ROW_PARAMETERS) {
  constexpr int THREADS = LANES * WARPS;
  int lane = threadIdx.x % THREADS;
  i64 row = (i64)blockIdx.x * (blockDim.x / THREADS) + threadIdx.x / THREADS;
  uint4 v[COUNT];
  uint4* target = (uint4*)(y + row * width);
  norm_row<LANES, WARPS, COUNT>(v, row, x, NORM_ARGUMENTS, [&](int i, uint4 normed) { target[i * THREADS + lane] = normed; });
}
#define ROW_NORM(name, LANES, WARPS, COUNT) \
  extern "C" __global__ void __launch_bounds__(256) name(ROW_PARAMETERS) { after_others(); row_norm<LANES, WARPS, COUNT>(x, y, NORM_ARGUMENTS); }
// The names say how many vectors a row may have; blocks have 256 threads. Those of a block for each row (`few`: of 128 threads) are for so
// few rows that a warp for each would leave much of the machine idle.
ROW_NORM(row_norm_16, 16, 1, 1)
ROW_NORM(row_norm_40, 8, 1, 5)
ROW_NORM(row_norm_80, 16, 1, 5)
ROW_NORM(row_norm_160, 32, 1, 5)
ROW_NORM(row_norm_128, 32, 1, 4)
ROW_NORM(row_norm_192, 32, 1, 6)
ROW_NORM(row_norm_384, 32, 1, 12)
ROW_NORM(row_norm_1024, 32, 8, 4)
ROW_NORM(row_norm_few_128, 32, 4, 1)
ROW_NORM(row_norm_few_384, 32, 4, 3)

// A block for each row, read three times.
extern "C" __global__ void __launch_bounds__(256) row_norm_any(ROW_PARAMETERS) {
  after_others();
  __shared__ float room[8];
  i64 row = blockIdx.x, start = row * width, modulation = row / each * width;
  float share = 1.f / width, origin = rms ? 0.f : T::load(x[start]), mean = 0.f, s = 0.f, q = 0.f;
  if (!rms) {
    for (int i = threadIdx.x; i < width; i += 256) s += T::load(x[start + i]) - origin;
    mean = block_sum<8>(s, room) * share;
  }
  for (int i = threadIdx.x; i < width; i += 256) { float t = T::load(x[start + i]) - origin - mean; q += t * t; }
  float factor = rsqrtf(block_sum<8>(q, room) * share + eps);
  for (int i = threadIdx.x; i < width; i += 256) {
    float f = (T::load(x[start + i]) - origin - mean) * factor;
    if (weight) f *= weight[i];
    if (bias) f += bias[i];
    if (scale) f = f * (1.f + T::load(scale[modulation + i])) + T::load(shift[modulation + i]);
    y[start + i] = T::store(f);
  }
}

// ---- softmax of rows ----
//
// `y` may be `x`: a thread writes what it alone reads. A row of minus infinities gives NaN.
template <int WARPS>
DI void softmax(const Store* x, Store* y, int rows, int width) {
  __shared__ float room[WARPS];
  int lane = threadIdx.x % (32 * WARPS);
  i64 row = (i64)blockIdx.x * (blockDim.x / (32 * WARPS)) + threadIdx.x / (32 * WARPS);
  if (row >= rows) return;   // whole warps, and no barrier where a block has several rows
  i64 start = row * width;
  float m = __uint_as_float(0xff800000u), s = 0.f;
  for (int i = lane; i < width; i += 32 * WARPS) m = fmaxf(m, T::load(x[start + i]));
  m = block_max<WARPS>(m, room);
  for (int i = lane; i < width; i += 32 * WARPS) s += ex2((T::load(x[start + i]) - m) * 1.44269504f);
  s = 1.f / block_sum<WARPS>(s, room);
  for (int i = lane; i < width; i += 32 * WARPS) y[start + i] = T::store(ex2((T::load(x[start + i]) - m) * 1.44269504f) * s);
}
extern "C" __global__ void __launch_bounds__(256) softmax_rows(const Store* x, Store* y, int rows, int width) { after_others(); softmax<1>(x, y, rows, width); }
extern "C" __global__ void __launch_bounds__(256) softmax_wide(const Store* x, Store* y, int rows, int width) { after_others(); softmax<8>(x, y, rows, width); }

// ---- between layers ----
//
// W elements at a time (N: rows of whole 16 bytes; 1: any). `count` and `width` are in units of W elements. Gates have a row for every `each`
// rows. Results may be written over the first operand.

template <int W> struct Lanes;
template <> struct Lanes<1> {
  typedef u64 Index;
  DI static void load(const Store* p, u64 i, float (&f)[1]) { f[0] = T::load(p[i]); }
  DI static void store(Store* p, u64 i, const float (&f)[1]) { p[i] = T::store(f[0]); }
};
template <> struct Lanes<N> {
  typedef u32 Index;   // 32-bit division is several times faster
  DI static void load(const Store* p, u64 i, float (&f)[N]) { unpack(((const uint4*)p)[i], f); }
  DI static void store(Store* p, u64 i, const float (&f)[N]) { ((uint4*)p)[i] = pack(f); }
};
#define EACH for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)

template <int W> DI void modulate(const Store* x, const Store* scale, const Store* shift, Store* y, u64 count, u32 width, u32 each) {
  typedef typename Lanes<W>::Index Index;
  EACH {
    Index row = (Index)i / width;
    u64 at = (u64)(row / each) * width + ((Index)i - row * width);
    float f[W], s[W], t[W];
    Lanes<W>::load(x, i, f);
    Lanes<W>::load(scale, at, s);
    if (shift) Lanes<W>::load(shift, at, t);
#pragma unroll
    for (int e = 0; e < W; e++) f[e] = f[e] * (1.f + s[e]) + (shift ? t[e] : 0.f);
    Lanes<W>::store(y, i, f);
  }
}
// x + gate * v
template <int W> DI void add_gated(const Store* x, const Store* gate, const Store* v, Store* y, u64 count, u32 width, u32 each) {
  typedef typename Lanes<W>::Index Index;
  EACH {
    Index row = (Index)i / width;
    u64 at = (u64)(row / each) * width + ((Index)i - row * width);
    float f[W], g[W], t[W];
    Lanes<W>::load(x, i, f);
    Lanes<W>::load(gate, at, g);
    Lanes<W>::load(v, i, t);
#pragma unroll
    for (int e = 0; e < W; e++) f[e] += g[e] * t[e];
    Lanes<W>::store(y, i, f);
  }
}
// silu(gate) * value. Rows of `gate` and `value` have `width` and start `step` apart, those of `y` lie next to each other.
template <int W> DI void swiglu(const Store* gate, const Store* value, Store* y, u64 count, u32 width, u32 step) {
  typedef typename Lanes<W>::Index Index;
  EACH {
    Index row = (Index)i / width;
    u64 at = (u64)row * step + ((Index)i - row * width);
    float g[W], v[W];
    Lanes<W>::load(gate, at, g);
    Lanes<W>::load(value, at, v);
#pragma unroll
    for (int e = 0; e < W; e++) v[e] *= sigmoid_times(g[e], 1.f);
    Lanes<W>::store(y, i, v);
  }
}
#define BETWEEN(suffix, W) \
  extern "C" __global__ void __launch_bounds__(256) modulate##suffix(const Store* x, const Store* scale, const Store* shift, Store* y, u64 count, u32 width, u32 each) { after_others(); modulate<W>(x, scale, shift, y, count, width, each); } \
  extern "C" __global__ void __launch_bounds__(256) add_gated##suffix(const Store* x, const Store* gate, const Store* v, Store* y, u64 count, u32 width, u32 each) { after_others(); add_gated<W>(x, gate, v, y, count, width, each); } \
  extern "C" __global__ void __launch_bounds__(256) swiglu##suffix(const Store* gate, const Store* value, Store* y, u64 count, u32 width, u32 step) { after_others(); swiglu<W>(gate, value, y, count, width, step); }
BETWEEN(, N)
BETWEEN(_any, 1)
