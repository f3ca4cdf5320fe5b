// Sixteen bytes of elements at a time, and walks over tensors with steps. The module says the format of its elements: -DTY=F32, F16 or BF16.
//
// Buffers start at multiples of 256 bytes and tensors at the start of their buffer, so that what begins at a multiple of VEC elements is aligned.
#pragma once
#include "common.cuh"

typedef TY::Store Element;

// Elements in 16 bytes, as floats and back.
template <class T> struct Pack {
  static constexpr int SIZE = 8;
  DI static void load(float (&v)[8], const void* from) {
    uint4 raw = *(const uint4*)from;
    u32 word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v[2 * i] = T::lo(word[i]);
      v[2 * i + 1] = T::hi(word[i]);
    }
  }
  DI static void store(void* to, const float (&v)[8]) {
    *(uint4*)to = make_uint4(T::pack(v[0], v[1]), T::pack(v[2], v[3]), T::pack(v[4], v[5]), T::pack(v[6], v[7]));
  }
};
template <> struct Pack<F32> {
  static constexpr int SIZE = 4;
  DI static void load(float (&v)[4], const void* from) {
    float4 raw = *(const float4*)from;
    v[0] = raw.x; v[1] = raw.y; v[2] = raw.z; v[3] = raw.w;
  }
  DI static void store(void* to, const float (&v)[4]) { *(float4*)to = make_float4(v[0], v[1], v[2], v[3]); }
};
constexpr int VEC = Pack<TY>::SIZE;

// `V` elements: VEC of them as one pack, or a single one.
template <int V> DI void load_some(float (&v)[V], const Element* from) {
  if constexpr (V == VEC) Pack<TY>::load(v, from);
  else v[0] = TY::load(*from);
}
template <int V> DI void store_some(Element* to, const float (&v)[V]) {
  if constexpr (V == VEC) Pack<TY>::store(to, v);
  else *to = TY::store(v[0]);
}
template <int V> DI void load_floats(float (&v)[V], const float* from) {
#pragma unroll
  for (int i = 0; i < V; i++) v[i] = from[i];
}

// Number of this thread among those of the grid; no grid has more blocks than 2^31.
DI i64 thread_number() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

// The pack of a thread in an element by element kernel: VEC elements, or the few at the end.
struct Span {
  i64 first;
  int count;  // 0 for threads that are past the end
  DI explicit Span(i64 total) {
    first = thread_number() * VEC;
    i64 left = total - first;
    count = left >= VEC ? VEC : left > 0 ? (int)left : 0;
  }
  DI void load(float (&v)[VEC], const Element* from) const {
    if (count == VEC) {
      Pack<TY>::load(v, from + first);
    } else {
#pragma unroll
      for (int i = 0; i < VEC; i++) v[i] = i < count ? TY::load(from[first + i]) : 0.f;
    }
  }
  DI void store(Element* to, const float (&v)[VEC]) const {
    if (count == VEC) {
      Pack<TY>::store(to + first, v);
    } else {
#pragma unroll
      for (int i = 0; i < VEC; i++)
        if (i < count) to[first + i] = TY::store(v[i]);
    }
  }
};

// Sums of a block of 256 threads (and other operations that join two values), always in the same order. Every thread gets the result.
template <class F> DI float join_block(float v, F join) {
  __shared__ float warps[8];
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v = join(v, shxf(v, m));
  __syncthreads();
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = v;
  __syncthreads();
  v = warps[0];
#pragma unroll
  for (int i = 1; i < 8; i++) v = join(v, warps[i]);
  return v;
}
template <class F> DI float join_warp(float v, F join) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v = join(v, shxf(v, m));
  return v;
}
