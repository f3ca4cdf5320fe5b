// Weights of convolutions: (out, channel, position) as in files to (out, position, channel) as the kernels read them. And rows of bytes apart from their scales.
#include "common.cuh"

template <class T>
__device__ __forceinline__ void taps_first(const T* from, T* to, int channels, int taps, long long count) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const int channel = (int)(i % channels);
    const long long row = i / channels;
    const int tap = (int)(row % taps);
    const long long out = row / taps;
    to[i] = from[(out * channels + channel) * taps + tap];
  }
}

extern "C" __global__ void taps_first_8(const unsigned char* from, unsigned char* to, int channels, int taps, long long count) {
  after_others();
  taps_first(from, to, channels, taps, count);
}
extern "C" __global__ void taps_first_16(const unsigned short* from, unsigned short* to, int channels, int taps, long long count) {
  after_others();
  taps_first(from, to, channels, taps, count);
}
extern "C" __global__ void taps_first_32(const unsigned int* from, unsigned int* to, int channels, int taps, long long count) {
  after_others();
  taps_first(from, to, channels, taps, count);
}
// Rows of `columns` bytes, each with the four bytes of its scale behind it, to all rows and then all scales. 16 divides `columns`; a thread takes 16 bytes, whose
// place in a row of a file is a multiple of four.
extern "C" __global__ void rows_apart(const u32* from, uint4* to, int columns, i64 rows) {
  after_others();
  const int packs = columns / 16, row_words = columns / 4 + 1;
  const i64 step = (i64)gridDim.x * blockDim.x, count = rows * packs;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const i64 row = i / packs;
    const u32* p = from + row * row_words + (i - row * packs) * 4;
    to[i] = make_uint4(p[0], p[1], p[2], p[3]);
  }
  u32* scales = (u32*)(to + count);
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += step) scales[i] = from[i * row_words + row_words - 1];
}

// bf16 weights that were brought over in some 11 bits each (crates/tensor/src/narrow.rs): a byte of sign and mantissa, and three bits that say which of 7 exponents it is; code 7 is
// another one, whose exponent is the next in a list. A thread has a group of sixteen elements, a warp a part, for which the index says where in the list its exponents begin.
// (The warp is all that reaches the shuffles: groups behind the last have no others.)
extern "C" __global__ void __launch_bounds__(256) widen(const uint4* low, const unsigned short* codes, const unsigned* index, const unsigned char* list, uint4* to, long long exponents, long long groups) {
  after_others();
  const unsigned a = (unsigned)exponents, b = (unsigned)(exponents >> 32);
  const int lane = threadIdx.x & 31;
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long start = (long long)blockIdx.x * blockDim.x + threadIdx.x - lane; start < groups; start += step) {
    const long long i = start + lane;
    const bool there = i < groups;
    uint4 bytes = make_uint4(0, 0, 0, 0);
    unsigned n0 = 0, n1 = 0, n2 = 0;
    if (there) { bytes = low[i]; n0 = codes[i]; n1 = codes[groups + i]; n2 = codes[2 * groups + i]; }
    const unsigned lows[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    const unsigned fours[4] = {n0 & 0x7777u, n1 & 0x7777u, n2 & 0x7777u, (n0 >> 3 & 0x1111u) | (n1 >> 2 & 0x2222u) | (n2 >> 1 & 0x4444u)};
    unsigned marks[4];
    int count = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      marks[k] = fours[k] & fours[k] >> 1 & fours[k] >> 2 & 0x1111u;
      count += __popc(marks[k]);
    }
    // Others of the groups before this one.
    int before = count;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, d);
      if (lane >= d) before += other;
    }
    if (!there) continue;
    const unsigned char* next = list + index[i >> 5] + (before - count);
    unsigned out[8];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      // Three bits of four are what `prmt` takes to choose one of eight bytes.
      unsigned found = __byte_perm(a, b, fours[k]);
      for (unsigned left = marks[k]; left; left &= left - 1) {
        const int at = 2 * (__ffs((int)left) - 1);
        found |= (unsigned)*next++ << at;
      }
      const unsigned high = (lows[k] & 0x80808080u) | (found >> 1 & 0x7f7f7f7fu);
      const unsigned deep = (lows[k] & 0x7f7f7f7fu) | (found & 0x01010101u) << 7;
      out[2 * k] = __byte_perm(deep, high, 0x5140u);
      out[2 * k + 1] = __byte_perm(deep, high, 0x7362u);
    }
    to[2 * i] = make_uint4(out[0], out[1], out[2], out[3]);
    to[2 * i + 1] = make_uint4(out[4], out[5], out[6], out[7]);
  }
}

// What a LoRA adds to a weight.
extern "C" __global__ void __launch_bounds__(256) add_scaled(float* to, const float* from, float by, long long count) {
  after_others();
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) to[i] += by * from[i];
}

// Values as 8-bit floats, up or down by a chance that follows from the seed and the place, the nearer one the more likely:
// byte for byte what the processor makes of the same values (formats/encode.rs). `steps` are the numbers from zero to the largest.
extern "C" __global__ void __launch_bounds__(256) round_by_chance(const float* from, unsigned char* to, const float* steps, int number, unsigned long long seed, long long count) {
  after_others();
  __shared__ float known[128];
  for (int i = threadIdx.x; i < number; i += blockDim.x) known[i] = steps[i];
  __syncthreads();
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const float value = from[i];
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = bits >> 24 & 0x80u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
      to[i] = (unsigned char)(0x7fu | sign);
      continue;
    }
    const float size = __uint_as_float(bits & 0x7fffffffu);
    int below = 0, end = number;
    while (end - below > 1) {
      const int middle = (below + end) / 2;
      if (known[middle] <= size) below = middle; else end = middle;
    }
    int up = 0;
    if (below + 1 < number) {
      const float part = __fdiv_rn(__fsub_rn(size, known[below]), __fsub_rn(known[below + 1], known[below]));
      unsigned long long z = seed + (unsigned long long)(i + 1) * 0x9E3779B97F4A7C15ull;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
      z ^= z >> 31;
      const float unit = __fsub_rn(__fmul_rn((float)(unsigned)(z >> 40), 1.0f / 8388608.0f), 1.0f);
      // Half of one and it: exact, both are multiples of a power of two below one.
      const float chance = __fmul_rn(__fadd_rn(unit, 1.0f), 0.5f);
      up = chance < part;
    }
    to[i] = (unsigned char)((below + up) | sign);
  }
}
