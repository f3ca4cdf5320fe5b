// A few rows times the weights of many layers, in one kernel: each warp makes one output of all rows. Bound by reading the weights.
#include "common.cuh"

constexpr int MOST_LAYERS = 32, MOST_ROWS = 8;
// Weight (n, columns), bias (n) or none, result (rows, n); `end` counts the outputs of all layers up to this one.
struct Layer { const u16* weight; const float* bias; u16* out; int n, end; };
struct Layers { Layer layer[MOST_LAYERS]; };

// x: (rows, columns), 8 divides `columns`.
extern "C" __global__ void __launch_bounds__(256) few_rows(const u16* x, int rows, int columns, int count, const __grid_constant__ Layers layers) {
  after_others();
  const int lane = threadIdx.x & 31;
  int output = blockIdx.x * 8 + (threadIdx.x >> 5), at = 0;
  while (at < count && output >= layers.layer[at].end) at++;
  if (at == count) return;
  const Layer& layer = layers.layer[at];
  output -= layer.end - layer.n;
  const uint4* weight = (const uint4*)(layer.weight + (i64)output * columns);
  float sum[MOST_ROWS];
#pragma unroll
  for (int r = 0; r < MOST_ROWS; r++) sum[r] = 0.f;
  for (int p = lane; p < columns / 8; p += 32) {
    uint4 w = weight[p];
    const u32 ww[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
    for (int r = 0; r < MOST_ROWS; r++)
      if (r < rows) {
        uint4 v = ((const uint4*)(x + (i64)r * columns))[p];
        const u32 vv[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int i = 0; i < 4; i++) { sum[r] += TY::lo(vv[i]) * TY::lo(ww[i]); sum[r] += TY::hi(vv[i]) * TY::hi(ww[i]); }
      }
  }
  float bias = layer.bias ? layer.bias[output] : 0.f;
#pragma unroll
  for (int r = 0; r < MOST_ROWS; r++)
    if (r < rows) {
#pragma unroll
      for (int m = 16; m; m >>= 1) sum[r] += shxf(sum[r], m);
      if (lane == 0) layer.out[(i64)r * layer.n + output] = TY::store(sum[r] + bias);
    }
}
