// Rows of quantised weights from the tensors that files keep in their place: codes, scales and what else belongs to groups or rows. Each kernel writes one part of every
// row; what it reads lies as in the file. Nothing here looks at a value but where the file has another number format than rows, so there is one module for all formats.
// The order of tiles is that of crates/tensor/src/formats/swizzle.rs; who starts these kernels is crates/tensor/src/cuda/assemble.rs.
#include "common.cuh"

// Where the values of a row are: `each` rows belong to an expert, and the first row that is written is row `first` of all. Steps are in values.
struct Lines { int rows, first, each; i64 expert_step, row_step, value_step; };
// Where they go: `count` values from byte `place` of rows of `row_bytes` on.
struct Place { int row_bytes, place, count; };

template <class D> DI void put(u8* p, D value, bool whole) {
  if (whole) { *(D*)p = value; return; }
#pragma unroll
  for (int b = 0; b < (int)sizeof(D); b++) p[b] = (u8)(value >> (8 * b));
}

// A warp has a row. `value(expert, row, i)` is value i of a row of an expert, in as many bits as rows have it.
template <class D, class Value> DI void write_lines(u8* to, const Lines& lines, const Place& at, Value value) {
  const bool whole = (at.row_bytes | at.place) % (int)sizeof(D) == 0;
  const int lane = threadIdx.x & 31, step = (int)(gridDim.x * blockDim.x / 32);
  for (int row = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32); row < lines.rows; row += step) {
    const u32 all = (u32)lines.first + (u32)row, expert = all / (u32)lines.each, inside = all - expert * (u32)lines.each;
    u8* line = to + (i64)row * at.row_bytes + at.place;
#pragma unroll 4
    for (int i = lane; i < at.count; i += 32) put(line + (i64)i * (int)sizeof(D), (D)value((i64)expert, (i64)inside, i), whole);
  }
}

#define LINES(name, S, D, ...)                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(256) name(const S* __restrict__ from, u8* __restrict__ to, int rows, int first, int each, i64 expert_step,   \
      i64 row_step, i64 value_step, int row_bytes, int place, int count) {                                                                                  \
    after_others();                                                                                                                                         \
    const Lines lines = { rows, first, each, expert_step, row_step, value_step };                                                                           \
    const Place at = { row_bytes, place, count };                                                                                                           \
    write_lines<D>(to, lines, at, [=](i64 expert, i64 row, int i) {                                                                                         \
      const S v = from[expert * expert_step + row * row_step + i * value_step];                                                                             \
      return __VA_ARGS__;                                                                                                                                   \
    });                                                                                                                                                     \
  }
LINES(lines_8, u8, u8, v)
LINES(lines_16, u16, u16, v)
LINES(lines_32, u32, u32, v)
// What rows have in 32 bits and the file in 16.
LINES(lines_f16, u16, u32, __float_as_uint(half_to_float(v)))
LINES(lines_bf16, u16, u32, __float_as_uint(bf16_to_float(v)))

// Bytes in tiles of 128 rows by four columns, in which rows 32 apart lie next to each other; `across` tiles beside each other.
extern "C" __global__ void __launch_bounds__(256) lines_tiled(const u8* __restrict__ from, u8* __restrict__ to, int rows, int first, int each, i64 expert_step,
    i64 across, int row_bytes, int place, int count) {
  after_others();
  const Lines lines = { rows, first, each, expert_step, 0, 0 };
  const Place at = { row_bytes, place, count };
  write_lines<u8>(to, lines, at, [=](i64 expert, i64 row, int i) {
    const i64 tile = row / 128 * across + i / 4;
    return from[expert * expert_step + tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + i % 4];
  });
}
