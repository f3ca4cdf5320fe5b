// Products and convolutions without tensor cores: any card, any size and alignment, sums by f32 FMA in the order of K. The same meaning as
// product_mma.cu: out = gate * act(A W^T + bias + per_item) + residual. And products of two results, item by item.
//
// 256 threads, a tile of 16 TM x 16 TM outputs, TM x TM per thread; A and W lie in shared memory with K outermost.
#include "finish.cuh"

typedef TY::Store S;

// The element type of a weight may be another than that of the results.
enum { WEIGHT_F32 = 0, WEIGHT_F16 = 1, WEIGHT_BF16 = 2 };
DI float weight_at(const void* w, i64 at, int kind) {
  if (kind == WEIGHT_F32) return ((const float*)w)[at];
  u16 v = ((const u16*)w)[at];
  return kind == WEIGHT_F16 ? half_to_float(v) : bf16_to_float(v);
}
// A call, not inline: inlined for all the outputs of a thread it would be most of the code.
__device__ __noinline__ float activate_one(float x, int act) {
  if (sizeof(S) == 4) return activate_exact(x, act);
  float one[1] = {x};
  activate_fast(one, act);
  return one[0];
}

struct Window {
  int frames, in_height, in_width, channels;
  int large_height, large_width;
  int out_height, out_width;
  int time, height, width;
  int time_stride, stride;
  int time_before, above, left;
};

// What a thread reads of A: four neighbours along K of one row.
enum { ROWS = 0, PICTURE = 1 };

// The shared part: sums of a tile. `a(k)` and `b(k)` give the thread's element of A and of B at k; both are asked in order of K.
// BT = 0: the thread loads 4 of K for one column of B; BT = 1 (B is (K, N)): 4 columns for one k.
template <int TM> struct Tile {
  static constexpr int BM = 16 * TM, BK = 64 / TM, PITCH = BM + 4;
  float a[2][BK][PITCH], b[2][BK][PITCH];
};

template <int TM, class LoadA, class LoadB> DI void sum_tile(Tile<TM>& tile, float (&acc)[TM][TM], int K, bool along_k, LoadA load_a, LoadB load_b) {
  constexpr int BM = Tile<TM>::BM, BK = Tile<TM>::BK, QK = BK / 4, QN = BM / 4;
  int tid = threadIdx.x, tx = tid & 15, ty = tid >> 4;
  int row = tid / QK, k4 = tid % QK * 4;        // of A, and of B along K
  int bk = tid / QN, b4 = tid % QN * 4;         // of B across K
  float ra[4], rb[4];
  auto fetch = [&](int k0) {
#pragma unroll
    for (int i = 0; i < 4; i++) ra[i] = load_a(k0 + k4 + i);
#pragma unroll
    for (int i = 0; i < 4; i++) rb[i] = along_k ? load_b(k0 + k4 + i, 0) : load_b(k0 + bk, i);
  };
  auto lay = [&](int s) {
#pragma unroll
    for (int i = 0; i < 4; i++) tile.a[s][k4 + i][row] = ra[i];
#pragma unroll
    for (int i = 0; i < 4; i++) { if (along_k) tile.b[s][k4 + i][row] = rb[i]; else tile.b[s][bk][b4 + i] = rb[i]; }
  };
  fetch(0);
  lay(0);
  __syncthreads();
  int s = 0;
  for (int k0 = 0; k0 < K; k0 += BK, s ^= 1) {
    bool more = k0 + BK < K;
    if (more) fetch(k0 + BK);
#pragma unroll
    for (int k = 0; k < BK; k++) {
      float x[TM], y[TM];
#pragma unroll
      for (int i = 0; i < TM; i += 4) {
        *(float4*)(x + i) = *(const float4*)&tile.a[s][k][(i / 4) * 64 + 4 * ty];
        *(float4*)(y + i) = *(const float4*)&tile.b[s][k][(i / 4) * 64 + 4 * tx];
      }
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TM; j++) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }
    if (more) lay(s ^ 1);
    __syncthreads();
  }
}
// Row or column of a tile that accumulator i of thread t (of 16) belongs to.
DI int tile_at(int i, int t) { return (i / 4) * 64 + 4 * t + i % 4; }

template <int TM, int KIND, int GEGLU> DI void product(const S* A, const void* W, int weight_kind, const After<S>& f, int M, int N, int K, const Window& w) {
  constexpr int BM = Tile<TM>::BM, QK = Tile<TM>::BK / 4;
  __shared__ Tile<TM> tile;
  int tid = threadIdx.x, nt = (N + BM - 1) / BM, mi, ni;
  tile_place(blockIdx.x, (M + BM - 1) / BM, nt, 8, mi, ni);
  int m = mi * BM + tid / QK, p = tid / QK;
  // With GEGLU each four columns of a tile are two values and their gates, so that both meet in one thread.
  int o = GEGLU ? ni * (BM / 2) + (p >> 2) * 2 + (p & 1) : ni * BM + p;
  bool column_ok = o < (GEGLU ? N / 2 : N);
  if (GEGLU && (p & 2)) o += N / 2;
  i64 weight_row = (i64)o * K;
  auto load_b = [&](int k, int) { return column_ok && k < K ? weight_at(W, weight_row + k, weight_kind) : 0.f; };
  float acc[TM][TM];
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TM; j++) acc[i][j] = 0.f;
  if (KIND == ROWS) {
    const S* line = A + (i64)m * K;
    bool row_ok = m < M;
    sum_tile<TM>(tile, acc, K, true, [&](int k) { return row_ok && k < K ? TY::load(line[k]) : 0.f; }, load_b);
  } else {
    int line = m / w.out_width, ox = m - line * w.out_width, oz = line / w.out_height, oy = line - oz * w.out_height;
    int z0 = oz * w.time_stride - w.time_before, y0 = oy * w.stride - w.above, x0 = ox * w.stride - w.left;
    int tap = -1; i64 at = -1;   // where the pixel that `tap` sees begins; -1 outside of the picture
    sum_tile<TM>(tile, acc, K, true, [&](int k) {
      if (m >= M || k >= K) return 0.f;
      int of = k / w.channels, c = k - of * w.channels;
      if (of != tap) {
        tap = of;
        int plane = w.height * w.width, kz = tap / plane, in = tap - kz * plane, ky = in / w.width;
        int z = z0 + kz, y = y0 + ky, x = x0 + in - ky * w.width;
        at = -1;
        if ((u32)z < (u32)w.frames && (u32)y < (u32)w.large_height && (u32)x < (u32)w.large_width) {
          if (w.large_height != w.in_height) y = (int)((i64)y * w.in_height / w.large_height);
          if (w.large_width != w.in_width) x = (int)((i64)x * w.in_width / w.large_width);
          at = (((i64)z * w.in_height + y) * w.in_width + x) * w.channels;
        }
      }
      return at < 0 ? 0.f : TY::load(A[at + c]);
    }, load_b);
  }
  // A row of the thread's sums at a time through shared memory, where a loop can count: unrolled, what follows would be most of the code.
  int tx = tid & 15, ty = tid >> 4;
  float (*own)[256] = (float (*)[256])&tile;
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TM; j++) own[j][tid] = acc[i][j];
    int row = mi * BM + tile_at(i, ty);
    if (row >= M) continue;
    if (GEGLU) {
      int n = N / 2;
#pragma unroll 1
      for (int j = 0; j < TM; j += (j & 1) ? 3 : 1) {
        int c = ni * (BM / 2) + (tile_at(j & ~3, tx) >> 1) + (j & 1);
        if (c >= n) continue;
        float v = own[j][tid], g = own[j + 2][tid];
        if (f.bias) { v += f.bias[c]; g += f.bias[n + c]; }
        f.out[(i64)row * n + c] = TY::store(v * activate_one(g, ACT_GELU));
      }
    } else {
      i64 item = f.per_item || f.gate ? (i64)(row / f.rows_per_item) * N : 0;
#pragma unroll 1
      for (int j = 0; j < TM; j++) {
        int c = ni * BM + tile_at(j, tx);
        if (c >= N) continue;
        float v = own[j][tid];
        if (f.bias) v += f.bias[c];
        if (f.per_item) v += TY::load(f.per_item[item + c]);
        if (f.act && c >= f.act_from) v = activate_one(v, f.act);
        if (f.gate) v *= TY::load(f.gate[item + c]);
        if (f.residual) v += TY::load(f.residual[(i64)row * N + c]);
        f.out[(i64)row * N + c] = TY::store(v);
      }
    }
  }
}

#define ROWS_KERNEL(name, TM, GEGLU) extern "C" __global__ void __launch_bounds__(256) name(const S* A, const void* W, int weight_kind, AFTER_PARAMETERS(S), int M, int N, int K) { after_others(); \
  const After<S> after = AFTER_VALUES; \
  product<TM, ROWS, GEGLU>(A, W, weight_kind, after, M, N, K, Window()); \
}
#define PICTURE_KERNEL(name, TM) extern "C" __global__ void __launch_bounds__(256) name(const S* A, const void* W, int weight_kind, AFTER_PARAMETERS(S), int M, int N, \
    int frames, int in_height, int in_width, int channels, int large_height, int large_width, int out_height, int out_width, int time, int height, int width, \
    int time_stride, int stride, int time_before, int above, int left) { after_others(); \
  const After<S> after = AFTER_VALUES; \
  const Window window = { frames, in_height, in_width, channels, large_height, large_width, out_height, out_width, time, height, width, time_stride, stride, time_before, above, left }; \
  product<TM, PICTURE, 0>(A, W, weight_kind, after, M, N, time * height * width * channels, window); \
}
ROWS_KERNEL(rows_64, 4, 0)
ROWS_KERNEL(rows_128, 8, 0)
ROWS_KERNEL(geglu_64, 4, 1)
PICTURE_KERNEL(picture_64, 4)
PICTURE_KERNEL(picture_128, 8)

// (items, M, K) times (items, K, N), item by item. grid: (tiles, items up to 65535)
extern "C" __global__ void __launch_bounds__(256) matmul(const S* A, const S* B, S* out, int items, int M, int N, int K) {
  after_others();
  constexpr int TM = 4, BM = Tile<TM>::BM, QK = Tile<TM>::BK / 4, QN = BM / 4;
  __shared__ Tile<TM> tile;
  int tid = threadIdx.x, mi, ni;
  tile_place(blockIdx.x, (M + BM - 1) / BM, (N + BM - 1) / BM, 8, mi, ni);
  int m = mi * BM + tid / QK, n = ni * BM + tid % QN * 4;
  for (int item = blockIdx.y; item < items; item += gridDim.y) {
    const S* line = A + ((i64)item * M + m) * K;
    const S* other = B + (i64)item * K * N + n;
    float acc[TM][TM];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int j = 0; j < TM; j++) acc[i][j] = 0.f;
    sum_tile<TM>(tile, acc, K, false, [&](int k) { return m < M && k < K ? TY::load(line[k]) : 0.f; },
                 [&](int k, int i) { return k < K && n + i < N ? TY::load(other[(i64)k * N + i]) : 0.f; });
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
      for (int j = 0; j < TM; j++) {
        int row = mi * BM + tile_at(i, tid >> 4), c = ni * BM + tile_at(j, tid & 15);
        if (row < M && c < N) out[((i64)item * M + row) * N + c] = TY::store(acc[i][j]);
      }
  }
}
