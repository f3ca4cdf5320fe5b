// Adds the parts of products that were cut along K, always in the same order, and finishes them: see product_hopper.cu and product_mma.cu.
#include "finish.cuh"

// sums: (tile, part, 128, columns) f32 of the tiles from `first` on. Block (tile, slice) makes 8 rows of a tile; a thread makes eight columns at a time.
extern "C" __global__ void __launch_bounds__(256) finish_parts(const float* sums, AFTER_PARAMETERS(u16), int N, int out_height, int out_width, int out_count, int wlog, int hlog, int phases,
    int group, int first, int parts, int columns, int geglu, SCALES_PARAMETERS, OTHERS_PARAMETERS) {
  after_others();
  const Others others = OTHERS_VALUES;
  const Scales by = { row_scale, column_scale };
  const Boxes boxes = { out_height, out_width, out_count, wlog, hlog, phases };
  int mt = boxes_all(boxes), nt = columns_all(others, (N + columns - 1) / columns);
  int mi, ni, x0, y0, z0, phase;
  tile_place(first + blockIdx.x, mt, nt, group, mi, ni);
  const After<u16> f = choose(After<u16> AFTER_VALUES, others, ni);
  box_corner(boxes, mi, x0, y0, z0, phase);
  int own = geglu ? columns / 2 : columns, n = geglu ? N / 2 : N, chunks = own / 8;
  const float* tile = sums + (i64)blockIdx.x * parts * 128 * columns;
  for (int i = threadIdx.x; i < 8 * chunks; i += 256) {
    int r = blockIdx.y * 8 + i / chunks, p = i % chunks * 8, c = ni * own + p;
    bool ok;
    i64 row = box_row(boxes, x0, y0, z0, phase, r, ok);
    if (!ok || c >= n) continue;
    float x[8], g[8];
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = g[e] = 0.f;
    const float* from = tile + (i64)r * columns + p;
    const i64 step = (i64)128 * columns;
    // Four parts are on their way at once; they are added one after the other.
    for (int part = 0; part < parts; part += 4) {
      float4 v[4][2], w[4][2];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        bool is = part + e < parts;
        const float4* at = (const float4*)(from + (part + e) * step);
        v[e][0] = is ? at[0] : make_float4(0.f, 0.f, 0.f, 0.f);
        v[e][1] = is ? at[1] : make_float4(0.f, 0.f, 0.f, 0.f);
        if (geglu) {
          at = (const float4*)(from + (part + e) * step + own);
          w[e][0] = is ? at[0] : make_float4(0.f, 0.f, 0.f, 0.f);
          w[e][1] = is ? at[1] : make_float4(0.f, 0.f, 0.f, 0.f);
        }
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        add4(x, (const float*)&v[e][0]); add4(x + 4, (const float*)&v[e][1]);
        if (geglu) { add4(g, (const float*)&w[e][0]); add4(g + 4, (const float*)&w[e][1]); }
      }
    }
    if (by.row) {
      scale8(by, x, row, c, n);
      if (geglu) { Scales gates = { by.row, by.column + n }; scale8(gates, g, row, c, n); }
    }
    if (geglu) finish8_geglu<TY>(f, x, g, row, c, n);
    else finish8<TY>(f, x, row, c, n);
  }
}
