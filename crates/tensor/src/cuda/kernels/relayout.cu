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

// bf16 weights that were brought over in 12 bits each (crates/tensor/src/narrow.rs): a byte of sign and mantissa, and half a
// byte that says which of 15 exponents it is. Sixteen elements at a time; code 15 is put right by `widen_rest`.
extern "C" __global__ void __launch_bounds__(256) widen(const uint4* low, const uint2* codes, uint4* to, long long first, long long second, long long groups) {
  after_others();
  const unsigned a = (unsigned)first, b = (unsigned)(first >> 32), c = (unsigned)second, d = (unsigned)(second >> 32);
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += step) {
    const uint4 bytes = low[i];
    const uint2 code = codes[i];
    const unsigned lows[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    const unsigned pairs[2] = {code.x, code.y};
    unsigned out[8];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const unsigned four = pairs[k / 2] >> (16 * (k % 2)) & 0xffffu;
      // A nibble is what `prmt` takes to choose one of eight bytes; its highest bit says which eight.
      const unsigned near = __byte_perm(a, b, four & 0x7777u);
      const unsigned far = __byte_perm(c, d, four & 0x7777u);
      const unsigned which = __byte_perm(0xff00u, 0u, four >> 3 & 0x1111u);
      const unsigned exponents = (near & ~which) | (far & which);
      const unsigned high = (lows[k] & 0x80808080u) | (exponents >> 1 & 0x7f7f7f7fu);
      const unsigned deep = (lows[k] & 0x7f7f7f7fu) | (exponents & 0x01010101u) << 7;
      out[2 * k] = __byte_perm(deep, high, 0x5140u);
      out[2 * k + 1] = __byte_perm(deep, high, 0x7362u);
    }
    to[2 * i] = make_uint4(out[0], out[1], out[2], out[3]);
    to[2 * i + 1] = make_uint4(out[4], out[5], out[6], out[7]);
  }
}

// Elements whose exponent is none of the 15: their place and exponent, one after the other.
extern "C" __global__ void __launch_bounds__(256) widen_rest(const unsigned char* low, const unsigned long long* rest, unsigned short* to, long long count) {
  after_others();
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const unsigned long long entry = rest[i];
    const unsigned byte = low[entry >> 8];
    to[entry >> 8] = (unsigned short)((byte & 0x80u) << 8 | (unsigned)(entry & 0xffu) << 7 | (byte & 0x7fu));
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
