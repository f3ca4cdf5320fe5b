// Attention without a score matrix for compute capability 8.0 and later (mma.sync), with every kind of mask.
//
// Tensors are (batch, tokens, heads, d). Four warps of 16 * MI queries; keys and values are copied two tiles deep; rows in shared memory
// are padded by 16 bytes against bank conflicts. An instance for D columns serves every multiple of 8 up to D: copies fill the rest with zeros.
//
// NVRTC defines for a build: TY = F16 or BF16.
#include "attention.cuh"

// Mask elements have the format of the tensors; steps are in elements, zero where the mask is the same for all.
struct MaskPlace { const u16* data; i64 item, head, query; int kind; };

template <class T, int D, int KEYS, int MI, bool MASKED>
DI void attention(const u16* q_all, const u16* k_all, const u16* v_all, u16* out, int queries, int keys, int heads, int d, float scale, MaskPlace mask) {
  constexpr int STEPS = (D + 15) / 16, PITCH = STEPS * 32 + 16, QUERIES = 64 * MI, TILE = KEYS * PITCH, COLUMNS = D / 8, VECTORS = STEPS * 2;
  extern __shared__ unsigned char raw[];
  u32 sq = smem_u32(raw), sk = sq + QUERIES * PITCH, sv = sk + 2 * TILE;
  int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, q = lane & 3;
  BlockPlace at = block_place(blockIdx.x, queries, QUERIES, heads);
  int first = at.tile * QUERIES;
  i64 stride = (i64)heads * d;
  const u16* q_base = q_all + (i64)at.item * queries * stride + at.head * d;
  const u16* k_base = k_all + (i64)at.item * keys * stride + at.head * d;
  const u16* v_base = v_all + (i64)at.item * keys * stride + at.head * d;

  // A thread copies one column of 16 bytes of every PASS-th row: one pointer with a constant step.
  constexpr int PASS = 128 / VECTORS, MOST = QUERIES > KEYS ? QUERIES : KEYS;
  int copy_row = tid / VECTORS, copy_vector = tid % VECTORS;
  bool copies = tid < PASS * VECTORS;
  int column_bytes = copy_vector * 8 < d ? 16 : 0;
  i64 copy_offset = copy_row * stride + (column_bytes ? copy_vector * 8 : 0);
  auto load = [&](const u16* source, u32 target, int row, int rows, int limit) {   // `rows` is constant at every call
    const u16* p = source + row * stride + copy_offset;
    u32 place = target + copy_row * PITCH + copy_vector * 16;
    if (!copies) return;
    if (row + rows <= limit) {
#pragma unroll
      for (int i = 0; i < (MOST + PASS - 1) / PASS; i++)
        if (i * PASS < rows && (rows % PASS == 0 || copy_row + i * PASS < rows)) { cp16(place + i * PASS * PITCH, p, column_bytes); p += PASS * stride; }
    } else {
#pragma unroll
      for (int i = 0; i < (MOST + PASS - 1) / PASS; i++)
        if (i * PASS < rows && (rows % PASS == 0 || copy_row + i * PASS < rows)) {
          bool there = row + copy_row + i * PASS < limit;
          cp16(place + i * PASS * PITCH, there ? p : source, there ? column_bytes : 0);
          p += PASS * stride;
        }
    }
  };

  load(q_base, sq, first, QUERIES, queries);
  load(k_base, sk, 0, KEYS, keys);
  cp_commit();
  load(v_base, sv, 0, KEYS, keys);
  cp_commit();
  float o[MI][COLUMNS][4], m[MI][2], l[MI][2];
#pragma unroll
  for (int i = 0; i < MI; i++) {
    m[i][0] = m[i][1] = MASKED ? minus_infinity() : -1e30f;
    l[i][0] = l[i][1] = 0.f;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[i][j][e] = 0.f;
  }
  int tiles = (keys + KEYS - 1) / KEYS;
  // Keys after the last query of the block are seen by none of it.
  if (MASKED && mask.kind == MASK_CAUSAL) tiles = min(tiles, (first + QUERIES + KEYS - 1) / KEYS);
  const u16* mask_base = nullptr;
  bool pairs = false;   // whether two neighbours can be read at once
  if (MASKED && mask.kind == MASK_ADD) {
    mask_base = mask.data + at.item * mask.item + at.head * mask.head;
    pairs = ((u64)mask_base & 3) == 0 && (mask.query & 1) == 0 && (keys & 1) == 0;
  }
  // What is added for a row of this thread (numbered as its sums are) in a tile: two elements of every eight columns.
  auto load_mask = [&](u32 (&added)[KEYS / 8], int number, int tile) {
    int row = min(first + warp * 16 * MI + (number >> 1) * 16 + (number & 1) * 8 + (lane >> 2), queries - 1), column = tile * KEYS + 2 * q;
    const u16* p = mask_base + row * mask.query + column;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
      int rest = keys - column - 8 * j;
      if (pairs) added[j] = rest > 0 ? *(const u32*)(p + 8 * j) : 0;
      else added[j] = (rest > 0 ? (u32)p[8 * j] : 0) | (rest > 1 ? (u32)p[8 * j + 1] << 16 : 0);
    }
  };
  float power = scale * LOG2_E;
  u32 fragment_q = sq + (warp * 16 * MI + (lane & 15)) * PITCH + (lane >> 4) * 16;
  u32 fragment_k = ((lane & 7) + ((lane >> 4) << 3)) * PITCH + ((lane >> 3) & 1) * 16;
  u32 fragment_v = (lane & 15) * PITCH + (lane >> 4) * 16;
  for (int it = 0; it < tiles; it++) {
    cp_wait<1>();
    __syncthreads();
    int current = it & 1;
    if (it + 1 < tiles) load(k_base, sk + (current ^ 1) * TILE, (it + 1) * KEYS, KEYS, keys);
    cp_commit();
    // Under way during the product.
    u32 added[KEYS / 8];
    if (MASKED && mask.kind == MASK_ADD) load_mask(added, 0, it);
    float s[MI][KEYS / 8][4];
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][j][e] = 0.f;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      u32 a[MI][4];
#pragma unroll
      for (int i = 0; i < MI; i++) ldsm4(a[i], fragment_q + i * 16 * PITCH + k * 32);
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) {
        u32 b[4];
        ldsm4(b, sk + current * TILE + fragment_k + j * 16 * PITCH + k * 32);
#pragma unroll
        for (int i = 0; i < MI; i++) { T::mma(s[i][2 * j], a[i], b[0], b[1]); T::mma(s[i][2 * j + 1], a[i], b[2], b[3]); }
      }
    }
    u32 p[MI][KEYS / 8][2];
    if (MASKED) {
#pragma unroll
      for (int i = 0; i < MI; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          int row = min(first + warp * 16 * MI + i * 16 + 8 * r + (lane >> 2), queries - 1);
          int column = it * KEYS + 2 * q;
          // Columns of this thread from here on are out of sight.
          int limit = (mask.kind == MASK_CAUSAL ? min(keys, row + 1) : keys) - column;
          float a = m[i][r];
#pragma unroll
          for (int j = 0; j < KEYS / 8; j++) {
            float x = s[i][j][2 * r] * scale, y = s[i][j][2 * r + 1] * scale;
            if (mask.kind == MASK_ADD) { x += T::lo(added[j]); y += T::hi(added[j]); }
            s[i][j][2 * r] = x = 8 * j < limit ? x : minus_infinity();
            s[i][j][2 * r + 1] = y = 8 * j + 1 < limit ? y : minus_infinity();
            a = fmaxf(a, fmaxf(x, y));
          }
          // The next row's, unless all rows have the same.
          if (mask.kind == MASK_ADD && 2 * i + r + 1 < 2 * MI && mask.query) load_mask(added, 2 * i + r + 1, it);
          a = fmaxf(a, shxf(a, 1)); a = fmaxf(a, shxf(a, 2));
          // While a query has seen nothing, its maximum is minus infinity and its sums stay zero: in the end zero over zero.
          float z = a == minus_infinity() ? 0.f : a, t = 0.f;
          float f = ex2((m[i][r] - z) * LOG2_E);
          m[i][r] = a;
          // The difference first: scores may be as low as the format goes.
#pragma unroll
          for (int j = 0; j < KEYS / 8; j++) {
            float x = ex2((s[i][j][2 * r] - z) * LOG2_E), y = ex2((s[i][j][2 * r + 1] - z) * LOG2_E);
            t += x + y;
            p[i][j][r] = T::pack(x, y);
          }
          l[i][r] = l[i][r] * f + t;
#pragma unroll
          for (int j = 0; j < COLUMNS; j++) { o[i][j][2 * r] *= f; o[i][j][2 * r + 1] *= f; }
        }
    } else {
      int limit = keys - it * KEYS;
      if (limit < KEYS) {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
          for (int e = 0; e < 2; e++)
            if (8 * j + 2 * q + e >= limit) {
#pragma unroll
              for (int i = 0; i < MI; i++) s[i][j][e] = s[i][j][2 + e] = -1e30f;
            }
      }
#pragma unroll
      for (int i = 0; i < MI; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float a = m[i][r];
#pragma unroll
          for (int j = 0; j < KEYS / 8; j++) a = fmaxf(a, fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
          a = fmaxf(a, shxf(a, 1)); a = fmaxf(a, shxf(a, 2));
          float f = ex2((m[i][r] - a) * power), z = a * power, t = 0.f;
          m[i][r] = a;
#pragma unroll
          for (int j = 0; j < KEYS / 8; j++) {
            float x = ex2(s[i][j][2 * r] * power - z), y = ex2(s[i][j][2 * r + 1] * power - z);
            t += x + y;
            p[i][j][r] = T::pack(x, y);
          }
          l[i][r] = l[i][r] * f + t;
#pragma unroll
          for (int j = 0; j < COLUMNS; j++) { o[i][j][2 * r] *= f; o[i][j][2 * r + 1] *= f; }
        }
    }
    cp_wait<1>();
    __syncthreads();
    if (it + 1 < tiles) load(v_base, sv + (current ^ 1) * TILE, (it + 1) * KEYS, KEYS, keys);
    cp_commit();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
      for (int j = 0; j < (COLUMNS + 1) / 2; j++) {
        u32 b[4];
        ldsm4t(b, sv + current * TILE + fragment_v + k * 16 * PITCH + j * 32);
#pragma unroll
        for (int i = 0; i < MI; i++) {
          u32 a[4] = {p[i][2 * k][0], p[i][2 * k][1], p[i][2 * k + 1][0], p[i][2 * k + 1][1]};
          T::mma(o[i][2 * j], a, b[0], b[1]);
          if (2 * j + 1 < COLUMNS) T::mma(o[i][2 * j + 1 < COLUMNS ? 2 * j + 1 : 0], a, b[2], b[3]);
        }
      }
    }
  }
  cp_wait<0>();
#pragma unroll
  for (int i = 0; i < MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float t = l[i][r];
      t += shxf(t, 1); t += shxf(t, 2);
      t = 1.f / t;
      int row = first + warp * 16 * MI + i * 16 + 8 * r + (lane >> 2);
      u16* place = out + ((i64)at.item * queries + row) * stride + at.head * d + 2 * q;
      if (row < queries)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
          if (8 * j < d) *(u32*)(place + 8 * j) = T::pack(o[i][j][2 * r] * t, o[i][j][2 * r + 1] * t);
    }
}

// The same for keys that are one tile, such as the words of a prompt: they stay in shared memory, and a block makes `each` tiles of 16 * WARPS queries. A warp copies its own
// queries, those of the next tile while it works, and leaves its results where they were, so that they are written in whole rows.
template <class T, int D, int KEYS, int WARPS>
DI void attention_short(const u16* q_all, const u16* k_all, const u16* v_all, u16* out, int queries, int keys, int heads, int d, float scale, int each) {
  constexpr int STEPS = (D + 15) / 16, PITCH = STEPS * 32 + 16, QUERIES = 16 * WARPS, COLUMNS = D / 8, VECTORS = STEPS * 2;
  extern __shared__ unsigned char raw[];
  const u32 base = smem_u32(raw), sk = base, sv = sk + KEYS * PITCH;
  int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, q = lane & 3;
  u32 own = sv + KEYS * PITCH + warp * 2 * 16 * PITCH;   // two tiles of the warp's queries
  BlockPlace at = block_place(blockIdx.x, queries, QUERIES * each, heads);
  i64 stride = (i64)heads * d;
  const u16* q_base = q_all + (i64)at.item * queries * stride + at.head * d;
  u16* o_base = out + (i64)at.item * queries * stride + at.head * d;
  // Rows of 16 bytes, with zeros past the last row and column.
  auto load = [&](const u16* from, u32 to, int rows, int there, int i, int step) {
    for (; i < rows * VECTORS; i += step) {
      int row = i / VECTORS, vector = i - row * VECTORS;
      bool is = row < there && vector * 8 < d;
      cp16(to + row * PITCH + vector * 16, is ? from + row * stride + vector * 8 : from, is ? 16 : 0);
    }
  };
  auto load_queries = [&](int tile) {
    int row = (at.tile * each + tile) * QUERIES + warp * 16;
    if (tile < each && row < queries) load(q_base + row * stride, own + (tile & 1) * 16 * PITCH, 16, queries - row, lane, 32);
    cp_commit();
  };
  load(k_all + (i64)at.item * keys * stride + at.head * d, sk, KEYS, keys, tid, 32 * WARPS);
  load(v_all + (i64)at.item * keys * stride + at.head * d, sv, KEYS, keys, tid, 32 * WARPS);
  load_queries(0);
  cp_wait<0>();
  __syncthreads();
  float power = scale * LOG2_E;
  u32 fragment_k = ((lane & 7) + ((lane >> 4) << 3)) * PITCH + ((lane >> 3) & 1) * 16;
  u32 fragment_v = (lane & 15) * PITCH + (lane >> 4) * 16;
#pragma unroll 1
  for (int tile = 0; tile < each; tile++) {
    int first = (at.tile * each + tile) * QUERIES + warp * 16;
    if (first >= queries) break;
    u32 mine = own + (tile & 1) * 16 * PITCH;
    load_queries(tile + 1);
    cp_wait<1>();
    __syncwarp();
    float s[KEYS / 8][4];
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[j][e] = 0.f;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      u32 a[4];
      ldsm4(a, mine + (lane & 15) * PITCH + (lane >> 4) * 16 + k * 32);
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) {
        u32 b[4];
        ldsm4(b, sk + fragment_k + j * 16 * PITCH + k * 32);
        T::mma(s[2 * j], a, b[0], b[1]); T::mma(s[2 * j + 1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (8 * j + 2 * q + e >= keys) s[j][e] = s[j][2 + e] = -1e30f;
    float sum[2];
    u32 p[KEYS / 8][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float a = -1e30f, t = 0.f;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) a = fmaxf(a, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      a = fmaxf(a, shxf(a, 1)); a = fmaxf(a, shxf(a, 2));
      float z = a * power;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
        float x = ex2(s[j][2 * r] * power - z), y = ex2(s[j][2 * r + 1] * power - z);
        t += x + y;
        p[j][r] = T::pack(x, y);
      }
      t += shxf(t, 1); t += shxf(t, 2);
      sum[r] = 1.f / t;
    }
    float o[COLUMNS][4];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[j][e] = 0.f;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
      const u32 a[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};
#pragma unroll
      for (int j = 0; j < (COLUMNS + 1) / 2; j++) {
        u32 b[4];
        ldsm4t(b, sv + fragment_v + k * 16 * PITCH + j * 32);
        T::mma(o[2 * j], a, b[0], b[1]);
        if (2 * j + 1 < COLUMNS) T::mma(o[2 * j + 1 < COLUMNS ? 2 * j + 1 : 0], a, b[2], b[3]);
      }
    }
    // Everyone has read the queries.
    __syncwarp();
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        *(u32*)(raw + (mine - base) + ((lane >> 2) + 8 * r) * PITCH + j * 16 + q * 4) = T::pack(o[j][2 * r] * sum[r], o[j][2 * r + 1] * sum[r]);
    __syncwarp();
    int vectors = d / 8;
    for (int i = lane; i < 16 * vectors; i += 32) {
      int row = quotient(i, vectors), vector = i - row * vectors;
      uint4 v = *(const uint4*)(raw + (mine - base) + row * PITCH + vector * 16);
      if (first + row < queries) *(uint4*)(o_base + (first + row) * stride + vector * 8) = v;
    }
    __syncwarp();
  }
  cp_wait<0>();
}

#define PARAMETERS const u16 *q, const u16 *k, const u16 *v, u16 *out, int queries, int keys, int heads, int d, float scale
#define KERNEL(name, D, KEYS, MI, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS) name(PARAMETERS) { after_others(); attention<TY, D, KEYS, MI, false>(q, k, v, out, queries, keys, heads, d, scale, MaskPlace()); }
#define MASKED_KERNEL(name, D, KEYS, MI, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS) name(PARAMETERS, const u16* mask, i64 mask_item, i64 mask_head, i64 mask_query, int kind) { after_others(); \
    attention<TY, D, KEYS, MI, true>(q, k, v, out, queries, keys, heads, d, scale, MaskPlace{mask, mask_item, mask_head, mask_query, kind}); }
#define SHORT(name, D, WARPS, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) name(PARAMETERS, int each) { after_others(); attention_short<TY, D, 80, WARPS>(q, k, v, out, queries, keys, heads, d, scale, each); }
// The sizes are known to cuda/ops/attention.rs. `attention_128_small` is for cards of 99 KiB of shared memory.
SHORT(short_40, 40, 8, 2)
SHORT(short_64, 64, 4, 3)
SHORT(short_80, 80, 4, 3)
SHORT(short_160, 160, 4, 2)
KERNEL(attention_40, 40, 64, 2, 2)
KERNEL(attention_64, 64, 64, 2, 2)
KERNEL(attention_80, 80, 64, 2, 2)
KERNEL(attention_128, 128, 64, 2, 2)
KERNEL(attention_128_small, 128, 32, 2, 1)
KERNEL(attention_160, 160, 32, 2, 1)
KERNEL(attention_256, 256, 32, 1, 1)
MASKED_KERNEL(masked_64, 64, 64, 2, 1)
MASKED_KERNEL(masked_128, 128, 32, 2, 1)
MASKED_KERNEL(masked_256, 256, 32, 1, 1)
