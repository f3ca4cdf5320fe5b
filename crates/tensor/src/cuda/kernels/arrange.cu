// Moving elements around. Nothing here looks at a value, so there is one module for all formats: kernels exist for units of 2, 4, 8 and 16 bytes,
// and the caller takes the largest unit that divides everything (runs of neighbours, steps, starts).
#include "walk.cuh"

DI i64 thread_number() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

// ---- copies with steps on both sides: permutations, slices, repetitions, flips, joins, writes into a box ----------------------

template <class U, class I>
DI void copy_units(U* to, const U* from, i64 total, const Walk& walk) {
  i64 at = thread_number(), write, read;
  if (at >= total) return;
  walk_offsets<I>((I)at, walk, write, read);
  to[write] = from[read];
}
#define COPY(name, U, I)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(256) name(U* to, const U* from, i64 total, const Walk walk) { after_others();              \
    copy_units<U, I>(to, from, total, walk);                                                                              \
  }
COPY(copy_2, u16, u32)
COPY(copy_4, u32, u32)
COPY(copy_8, uint2, u32)
COPY(copy_16, uint4, u32)
// For more units than 32 bits can count.
COPY(copy_2_wide, u16, u64)
COPY(copy_4_wide, u32, u64)
COPY(copy_8_wide, uint2, u64)
COPY(copy_16_wide, uint4, u64)

// ---- transposition: both sides are read and written in rows, through a tile in shared memory -----------------------------------

// Element (r, c) is at `from + r * row_step + c` and goes to `to + c * column_step + r`; the other dimensions are the walk.
// One block for each tile of 64 x 64: (walk, row of tiles, column of tiles), the last one fastest.
template <class U>
DI void transpose_tile(U* to, const U* from, i64 rows, i64 columns, i64 row_step, i64 column_step, const Walk& walk) {
  // The padding makes a row 65 words, or 33 words of two elements: a column then lies in 32 different banks.
  __shared__ U tile[64][64 + 4 / sizeof(U)];
  u32 across = (u32)((columns + 63) / 64), down = (u32)((rows + 63) / 64);
  u32 block = blockIdx.x;
  i64 first_column = (i64)(block % across) * 64;
  block /= across;
  i64 first_row = (i64)(block % down) * 64;
  block /= down;
  i64 write = 0, read = 0;
  walk_offsets<u32>(block, walk, write, read);
  int x = threadIdx.x & 63, y = threadIdx.x >> 6;
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    i64 r = first_row + y + i, c = first_column + x;
    if (r < rows && c < columns) tile[y + i][x] = from[read + r * row_step + c];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    i64 r = first_row + x, c = first_column + y + i;
    if (r < rows && c < columns) to[write + c * column_step + r] = tile[x][y + i];
  }
}
#define TRANSPOSE(name, U)                                                                                                \
  extern "C" __global__ void __launch_bounds__(256) name(U* to, const U* from, i64 rows, i64 columns, i64 row_step,       \
                                                         i64 column_step, const Walk walk) { after_others();                              \
    transpose_tile<U>(to, from, rows, columns, row_step, column_step, walk);                                              \
  }
TRANSPOSE(transpose_2, u16)
TRANSPOSE(transpose_4, u32)

// ---- chosen entries of a dimension ---------------------------------------------------------------------------------------------

// (outer, size, inner) to (outer, picks, inner): entry p is entry `ids[p]`.
template <class U, class I> DI void select_units(U* to, const U* from, const u32* ids, i64 total, i64 picks, i64 size, i64 inner) {
  i64 at = thread_number();
  if (at >= total) return;
  I rest = (I)at / (I)inner, i = (I)at - rest * (I)inner;
  I outer = rest / (I)picks, p = rest - outer * (I)picks;
  to[at] = from[((i64)outer * size + ids[p]) * inner + i];
}
#define SELECT(name, U, I)                                                                                                            \
  extern "C" __global__ void __launch_bounds__(256) name(U* to, const U* from, const u32* ids, i64 total, i64 picks, i64 size, i64 inner) { after_others(); \
    select_units<U, I>(to, from, ids, total, picks, size, inner);                                                                     \
  }
SELECT(select_2, u16, u32)
SELECT(select_4, u32, u32)
SELECT(select_8, uint2, u32)
SELECT(select_16, uint4, u32)
SELECT(select_2_wide, u16, u64)
SELECT(select_4_wide, u32, u64)
SELECT(select_8_wide, uint2, u64)
SELECT(select_16_wide, uint4, u64)

// ---- the nearest pixel ---------------------------------------------------------------------------------------------------------

// floor(i * old / size), in 32 bits where the product fits.
DI u32 nearest_index(u32 i, u32 old, u32 size, bool fits) { return fits ? i * old / size : (u32)((u64)i * old / size); }

// (b, h, w, c) to (b, height, width, c), c in units. A row of the result is a row of the grid's blocks, so that its index arithmetic is
// the same for a whole block.
template <class U> DI void nearest_units(U* to, const U* from, i64 rows, u32 h, u32 w, u32 height, u32 width, u32 c) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= width * c) return;
  u32 x = i / c, channel = i - x * c;
  u32 column = nearest_index(x, w, width, (u64)width * w < 0x100000000ull);
  bool fits = (u64)height * h < 0x100000000ull;
  for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
    i64 item = row / height;
    u32 line = nearest_index((u32)(row - item * height), h, height, fits);
    to[row * width * c + i] = from[((item * h + line) * w + column) * c + channel];
  }
}
#define NEAREST(name, U)                                                                                                              \
  extern "C" __global__ void __launch_bounds__(256) name(U* to, const U* from, i64 rows, int h, int w, int height, int width, int c) { after_others(); \
    nearest_units<U>(to, from, rows, h, w, height, width, c);                                                                         \
  }
NEAREST(nearest_2, u16)
NEAREST(nearest_4, u32)
NEAREST(nearest_8, uint2)
NEAREST(nearest_16, uint4)

// ---- parts of rows -------------------------------------------------------------------------------------------------------------

// Rows of `parts` * `width` packs, each part into a tensor of its own.
struct Parts { uint4* at[8]; };
extern "C" __global__ void __launch_bounds__(256) split_16(const uint4* from, i64 total, int parts, int width, const Parts to) {
  after_others();
  i64 at = thread_number();
  if (at >= total) return;
  i64 row = at / (parts * width);
  int column = (int)(at - row * (parts * width)), part = column / width;
  uint4 moved = from[at];
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i == part) to.at[i][row * width + column - part * width] = moved;
}
