// 16 bytes of elements at a time, and activations that keep the accuracy of f32.
#pragma once
#include "common.cuh"

// Elements in 16 bytes.
template <class T> constexpr int LANES16 = 16 / (int)sizeof(typename T::Store);

template <class T> DI void unpack16(uint4 v, float (&f)[8]) {
  f[0] = T::lo(v.x); f[1] = T::hi(v.x); f[2] = T::lo(v.y); f[3] = T::hi(v.y);
  f[4] = T::lo(v.z); f[5] = T::hi(v.z); f[6] = T::lo(v.w); f[7] = T::hi(v.w);
}
template <class T> DI void unpack16(uint4 v, float (&f)[4]) {
  f[0] = __uint_as_float(v.x); f[1] = __uint_as_float(v.y); f[2] = __uint_as_float(v.z); f[3] = __uint_as_float(v.w);
}
template <class T> DI uint4 pack16(const float (&f)[8]) { return make_uint4(T::pack(f[0], f[1]), T::pack(f[2], f[3]), T::pack(f[4], f[5]), T::pack(f[6], f[7])); }
template <class T> DI uint4 pack16(const float (&f)[4]) { return make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]), __float_as_uint(f[3])); }

// x / (1 + e^-(k x)), of which most activations are made. The product with a fast reciprocal is two units of the last place off, and zero where the power
// overflows; an exact division would take longer than the memory.
DI float sigmoid_times(float x, float k) { return x * reciprocal(1.f + ex2(-1.44269504f * k * x)); }

// The order of nn::Act.
enum Activation { ACT_NONE, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_QUICK_GELU, ACT_RELU, ACT_LEAKY };
DI float activate(float x, int act) {
  switch (act) {
    case ACT_SILU: return sigmoid_times(x, 1.f);
    case ACT_GELU: return 0.5f * x * (1.f + erff(x * 0.70710678f));
    case ACT_GELU_TANH: return sigmoid_times(x, 1.5957691f + 0.071354814f * x * x);
    case ACT_QUICK_GELU: return sigmoid_times(x, 1.702f);
    case ACT_RELU: return fmaxf(x, 0.f);
    case ACT_LEAKY: return fmaxf(x, 0.2f * x);
    default: return x;
  }
}
