// Norms of rows whose result is the input of a product of bytes: rounded to the format of the tensors first, and then to bytes.
//
// NVRTC defines for a build: TY = F16 or BF16.
#include "row_norm.cuh"
#include "rounding.cuh"

#define PARAMETERS const Store *x, u8 *to, float *scales, float levels, NORM_PARAMETERS

// A block for each row.
template <int WARPS, int COUNT, class B>
DI void normed_bytes(PARAMETERS) {
  __shared__ u32 parts[WARPS];
  constexpr int THREADS = 32 * WARPS;
  i64 row = blockIdx.x;
  int lane = threadIdx.x, vectors = width / N;
  uint4 v[COUNT];
  u32 most = 0;
  norm_row<32, WARPS, COUNT>(v, row, x, NORM_ARGUMENTS, [&](int i, uint4 normed) {
    float f[N];
    unpack(v[i] = normed, f);
#pragma unroll
    for (int e = 0; e < N; e++) most = max(most, magnitude(f[e]));
  });
  const float by = B::scale(most_of_block<WARPS>(most, parts), levels);
  if (lane == 0) scales[row] = by;
  uint2* target = (uint2*)(to + row * width);
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    if (i * THREADS + lane < vectors) {
      float f[N];
      unpack(v[i], f);
      target[i * THREADS + lane] = make_uint2(B::four(f, by), B::four(f + 4, by));
    }
}
#define NORMED_BYTES(name, WARPS, COUNT, B) \
  extern "C" __global__ void __launch_bounds__(32 * WARPS) name(PARAMETERS) { after_others(); normed_bytes<WARPS, COUNT, B>(x, to, scales, levels, NORM_ARGUMENTS); }
// The names say how many vectors a row may have.
NORMED_BYTES(whole_384, 4, 3, Whole)
NORMED_BYTES(whole_1024, 8, 4, Whole)
#if __CUDA_ARCH__ >= 890
NORMED_BYTES(e4m3_384, 4, 3, Float8)
NORMED_BYTES(e4m3_1024, 8, 4, Float8)
#endif
