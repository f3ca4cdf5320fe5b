// Adds the parts of products that were cut along K, always in the same order, and finishes them: see product_hopper.cu and product_mma.cu.
#include "finish.cuh"

// sums: (tile, part, 128, columns) f32 of the tiles from `first` on. Block (tile, slice) makes 16 rows of a tile; a thread makes eight columns at a time.
extern "C" __global__ void __launch_bounds__(256) finish_parts(const float* sums, AFTER_PARAMETERS(u16), int N, int out_height, int out_width, int out_count, int wlog, int hlog,
    int group, int first, int parts, int columns, int geglu) {
  const After<u16> f = AFTER_VALUES;
  const Boxes boxes = { out_height, out_width, out_count, wlog, hlog };
  int mt = boxes_across(boxes) * boxes_down(boxes) * boxes_deep(boxes), nt = (N + columns - 1) / columns;
  int mi, ni, x0, y0, z0;
  tile_place(first + blockIdx.x, mt, nt, group, mi, ni);
  box_corner(boxes, mi, x0, y0, z0);
  int own = geglu ? columns / 2 : columns, n = geglu ? N / 2 : N, chunks = own / 8;
  const float* tile = sums + (i64)blockIdx.x * parts * 128 * columns;
  for (int i = threadIdx.x; i < 16 * chunks; i += 256) {
    int r = blockIdx.y * 16 + i / chunks, p = i % chunks * 8, c = ni * own + p;
    bool ok;
    i64 row = box_row(boxes, x0, y0, z0, r, ok);
    if (!ok || c >= n) continue;
    float x[8], g[8];
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = g[e] = 0.f;
    for (int part = 0; part < parts; part++) {
      const float* from = tile + ((i64)part * 128 + r) * columns + p;
      add4(x, from); add4(x + 4, from + 4);
      if (geglu) { add4(g, from + own); add4(g + 4, from + own + 4); }
    }
    if (geglu) finish8_geglu<TY>(f, x, g, row, c, n);
    else finish8<TY>(f, x, row, c, n);
  }
}
