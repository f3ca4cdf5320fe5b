// Attention without tensor cores: every head size, every mask, sums of f32 products. For f32, for cards of 7.5, and for what the other
// attention kernels do not take.
//
// Tensors are (batch, tokens, heads, d). A block of 256 threads has 64 queries and walks over 64 keys at a time; a thread has four queries
// by four keys of the scores, then four queries by four columns of every 64 of its slice of the values. Blocks share heads wider than a
// slice, and then each computes the scores for itself.
//
// NVRTC defines for a build: TY = F32, F16 or BF16.
#include "attention.cuh"
typedef TY::Store Store;

constexpr int SIDE = 64, DEPTH = 32, PITCH = SIDE + 4;   // rows of shared memory start at 16 bytes and at different banks

// Sums for four queries and four keys of this thread: a (column of a tile) times b (row of a tile), `depth` times.
DI void multiply(float (&sum)[4][4], const float* a, const float* b, int depth) {
#pragma unroll 4
  for (int k = 0; k < depth; k++) {
    float4 x = *(const float4*)(a + k * PITCH), y = *(const float4*)(b + k * PITCH);
    sum[0][0] += x.x * y.x; sum[0][1] += x.x * y.y; sum[0][2] += x.x * y.z; sum[0][3] += x.x * y.w;
    sum[1][0] += x.y * y.x; sum[1][1] += x.y * y.y; sum[1][2] += x.y * y.z; sum[1][3] += x.y * y.w;
    sum[2][0] += x.z * y.x; sum[2][1] += x.z * y.y; sum[2][2] += x.z * y.z; sum[2][3] += x.z * y.w;
    sum[3][0] += x.w * y.x; sum[3][1] += x.w * y.y; sum[3][2] += x.w * y.z; sum[3][3] += x.w * y.w;
  }
}

// q k^T of a tile. Offsets inside a tile are below 2^31: a token has at most 2^24 channels. `near` has room for both tiles of DEPTH columns; `q_rows` and `k_rows` (not below zero) exist.
DI void score_tile(float (&s)[4][4], float* near, const Store* q, const Store* k, int q_rows, int k_rows, u32 stride, int d) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, ty = threadIdx.x >> 4, tx = threadIdx.x & 15;
  float *sq = near, *sk = near + DEPTH * PITCH;
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) s[i][j] = 0.f;
  for (int first = 0; first < d; first += DEPTH) {
    __syncthreads();
    int column = first + lane;
#pragma unroll 4
    for (int i = 0; i < SIDE / 8; i++) {
      int row = warp + 8 * i;
      bool there = column < d;
      sq[lane * PITCH + row] = there && row < q_rows ? TY::load(q[(u32)row * stride + column]) : 0.f;
      sk[lane * PITCH + row] = there && row < k_rows ? TY::load(k[(u32)row * stride + column]) : 0.f;
    }
    __syncthreads();
    multiply(s, sq + ty * 4, sk + tx * 4, min(DEPTH, d - first));
  }
}

DI float row_max(float v) { v = fmaxf(v, shxf(v, 1)); v = fmaxf(v, shxf(v, 2)); v = fmaxf(v, shxf(v, 4)); return fmaxf(v, shxf(v, 8)); }
DI float row_sum(float v) { v += shxf(v, 1); v += shxf(v, 2); v += shxf(v, 4); return v + shxf(v, 8); }

// Turns scores into weights relative to the largest score so far, keeps that and their sum, and gives the factor for earlier sums.
// While a query has seen nothing, its maximum is minus infinity and its sums stay zero: in the end zero over zero.
DI float weigh(float (&s)[4], float& m, float& l) {
  float a = fmaxf(m, row_max(fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]))));
  float z = a == minus_infinity() ? 0.f : a, f = ex2((m - z) * LOG2_E);
  float t = 0.f;
#pragma unroll
  for (int j = 0; j < 4; j++) { s[j] = ex2((s[j] - z) * LOG2_E); t += s[j]; }
  m = a;
  l = l * f + row_sum(t);
  return f;
}

template <int SLICE>
DI void attention(const Store* q_all, const Store* k_all, const Store* v_all, Store* out, int queries, int keys, int heads, int d, float scale,
                  const Store* mask, i64 mask_item, i64 mask_head, i64 mask_query, int kind) {
  constexpr int PARTS = SLICE / SIDE;
  __shared__ alignas(16) float near[SIDE * PITCH];      // queries and keys, then values
  __shared__ alignas(16) float weights[SIDE * PITCH];   // [key][query]
  int tid = threadIdx.x, ty = tid >> 4, tx = tid & 15;
  u32 slices = (d + SLICE - 1) / SLICE;
  int from = (int)(blockIdx.x % slices) * SLICE;
  BlockPlace at = block_place(blockIdx.x / slices, queries, SIDE, heads);
  int first = at.tile * SIDE;
  u32 stride = (u32)heads * d;
  const Store* q = q_all + ((i64)at.item * queries + first) * stride + (i64)at.head * d;
  const Store* k = k_all + (i64)at.item * keys * stride + (i64)at.head * d;
  const Store* v = v_all + (i64)at.item * keys * stride + (i64)at.head * d;
  const Store* mask_base = mask + at.item * mask_item + at.head * mask_head;   // read for MASK_ADD only
  float o[PARTS][4][4], m[4], l[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    m[i] = minus_infinity();
    l[i] = 0.f;
#pragma unroll
    for (int c = 0; c < PARTS; c++)
#pragma unroll
      for (int j = 0; j < 4; j++) o[c][i][j] = 0.f;
  }
  int end = kind == MASK_CAUSAL ? min(keys, first + SIDE) : keys;
  for (int key = 0; key < end; key += SIDE) {
    int rest = min(SIDE, keys - key);
    float s[4][4];
    score_tile(s, near, q, k + (i64)key * stride, queries - first, rest, stride, d);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int row = min(first + ty * 4 + i, queries - 1), limit = (kind == MASK_CAUSAL ? min(keys, row + 1) : keys) - key;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        int column = tx * 4 + j;
        s[i][j] *= scale;
        if (column >= limit) s[i][j] = minus_infinity();
        else if (kind == MASK_ADD) s[i][j] += TY::load(mask_base[row * mask_query + (key + column)]);
      }
      float f = weigh(s[i], m[i], l[i]);
#pragma unroll
      for (int c = 0; c < PARTS; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) o[c][i][j] *= f;
    }
    // The last tile's weights have been read: everyone has passed a barrier of score_tile since.
#pragma unroll
    for (int j = 0; j < 4; j++) *(float4*)(weights + (tx * 4 + j) * PITCH + ty * 4) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
      int start = from + c * SIDE;
      if (start < d) {
        __syncthreads();
        int column = start + (tid & 63);
        const Store* tile = v + (i64)key * stride;
#pragma unroll 4
        for (int i = 0; i < SIDE / 4; i++) {
          int row = (tid >> 6) + 4 * i;
          near[row * PITCH + (tid & 63)] = row < rest && column < d ? TY::load(tile[(u32)row * stride + column]) : 0.f;
        }
        __syncthreads();
        multiply(o[c], weights + ty * 4, near + tx * 4, rest);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int row = first + ty * 4 + i;
    float r = 1.f / l[i];
    if (row < queries) {
      Store* place = out + ((i64)at.item * queries + row) * stride + (i64)at.head * d;
#pragma unroll
      for (int c = 0; c < PARTS; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          int column = from + c * SIDE + tx * 4 + j;
          if (column < d) place[column] = TY::store(o[c][i][j] * r);
        }
    }
  }
}

// The sizes are known to cuda/ops/attention.rs.
#define KERNEL(SLICE, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) attention_##SLICE(const Store* q, const Store* k, const Store* v, Store* out, int queries, int keys, int heads, int d, float scale, const Store* mask, i64 mask_item, i64 mask_head, i64 mask_query, int kind) { after_others(); \
    attention<SLICE>(q, k, v, out, queries, keys, heads, d, scale, mask, mask_item, mask_head, mask_query, kind); }
KERNEL(64, 2)
KERNEL(128, 2)
KERNEL(256, 1)

// The softmax of the scores itself, (batch * heads, queries, keys): once over the keys for the largest score and the sum, and once more.
extern "C" __global__ void __launch_bounds__(256, 2) probabilities(const Store* q_all, const Store* k_all, Store* out, int queries, int keys, int heads, int d, float scale) {
  after_others();
  __shared__ alignas(16) float near[SIDE * PITCH];
  int ty = threadIdx.x >> 4, tx = threadIdx.x & 15;
  BlockPlace at = block_place(blockIdx.x, queries, SIDE, heads);
  int first = at.tile * SIDE;
  u32 stride = (u32)heads * d;
  const Store* q = q_all + ((i64)at.item * queries + first) * stride + (i64)at.head * d;
  const Store* k = k_all + (i64)at.item * keys * stride + (i64)at.head * d;
  float m[4], l[4];
#pragma unroll
  for (int i = 0; i < 4; i++) { m[i] = minus_infinity(); l[i] = 0.f; }
  auto tile = [&](float (&s)[4][4], int key) {
    score_tile(s, near, q, k + (i64)key * stride, queries - first, min(SIDE, keys - key), stride, d);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) s[i][j] = key + tx * 4 + j < keys ? s[i][j] * scale : minus_infinity();
  };
  for (int key = 0; key < keys; key += SIDE) {
    float s[4][4];
    tile(s, key);
#pragma unroll
    for (int i = 0; i < 4; i++) weigh(s[i], m[i], l[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) l[i] = 1.f / l[i];
  for (int key = 0; key < keys; key += SIDE) {
    float s[4][4];
    tile(s, key);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int row = first + ty * 4 + i;
      if (row < queries) {
        Store* place = out + (((i64)at.item * heads + at.head) * queries + row) * keys + key + tx * 4;
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (key + tx * 4 + j < keys) place[j] = TY::store(ex2((s[i][j] - m[i]) * LOG2_E) * l[i]);
      }
    }
  }
}
