// Arithmetic element by element: two tensors with broadcasting, functions of one, and what samplers do in one step.
#include "vectors.cuh"
#include "walk.cuh"

// ---- two tensors ---------------------------------------------------------------------------------------------------

// Numbers of the operations as in Rust's wrapper. The operation is the same for all threads, so that the choice costs little; it is
// made once for all `V` elements.
template <int V> DI void combine(float (&v)[V], const float (&w)[V], int op, float weight) {
#define CASE(number, value)     \
  case number:                  \
    _Pragma("unroll")           \
    for (int i = 0; i < V; i++) { \
      float a = v[i], b = w[i]; \
      v[i] = value;             \
    }                           \
    break;
  switch (op) {
    CASE(0, a + b)
    CASE(1, a - b)
    CASE(2, a * b)
    CASE(3, a / b)
    // NaN wins: where a number meets NaN in `b`, the comparison is false and `b` is taken.
    CASE(4, a < b || a != a ? a : b)
    CASE(5, a > b || a != a ? a : b)
    CASE(6, a * (1.f - weight) + b * weight)
  }
#undef CASE
}

// One operand of a pack: neighbours, or the same element for all where the last dimension is stretched.
DI void load_operand(float (&v)[VEC], const Element* from, bool stretched, int count) {
  if (stretched) {
    float one = TY::load(*from);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = one;
  } else if (count == VEC) {
    Pack<TY>::load(v, from);
  } else {
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = i < count ? TY::load(from[i]) : 0.f;
  }
}

// The last dimension is counted in packs; its steps are VEC, or 0 where it is stretched. With one dimension the last pack may be short.
extern "C" __global__ void __launch_bounds__(256) binary_packs(Element* to, const Element* a, const Element* b, i64 total, int op, float weight, const Walk walk) {
  after_others();
  Span span(total);
  if (span.count == 0) return;
  i64 at_a, at_b;
  walk_offsets<u32>((u32)thread_number(), walk, at_a, at_b);
  float v[VEC], w[VEC];
  load_operand(v, a + at_a, walk.steps_a[5] == 0, span.count);
  load_operand(w, b + at_b, walk.steps_b[5] == 0, span.count);
  combine(v, w, op, weight);
  span.store(to, v);
}

// Any steps, one element for each thread; `I` counts elements.
template <class I>
DI void binary_elements(Element* to, const Element* a, const Element* b, i64 total, int op, float weight, const Walk& walk) {
  i64 at = thread_number(), at_a, at_b;
  if (at >= total) return;
  walk_offsets<I>((I)at, walk, at_a, at_b);
  float v[1] = {TY::load(a[at_a])}, w[1] = {TY::load(b[at_b])};
  combine(v, w, op, weight);
  to[at] = TY::store(v[0]);
}
extern "C" __global__ void __launch_bounds__(256) binary(Element* to, const Element* a, const Element* b, i64 total, int op, float weight, const Walk walk) {
  after_others();
  binary_elements<u32>(to, a, b, total, op, weight, walk);
}
// The same for more elements than 32 bits can count.
extern "C" __global__ void __launch_bounds__(256) binary_wide(Element* to, const Element* a, const Element* b, i64 total, int op, float weight, const Walk walk) {
  after_others();
  binary_elements<u64>(to, a, b, total, op, weight, walk);
}

// ---- one tensor ----------------------------------------------------------------------------------------------------

DI float exact_sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
DI float exact_gelu_tanh(float x) { return 0.5f * x * (1.f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

// Numbers of the functions as in Rust's wrapper. `to` may be `from`.
extern "C" __global__ void __launch_bounds__(256) unary(Element* to, const Element* from, i64 total, int op, float p, float q) {
  after_others();
  Span span(total);
  if (span.count == 0) return;
  float v[VEC];
  span.load(v, from);
#define CASE(number, value)         \
  case number:                      \
    _Pragma("unroll")               \
    for (int i = 0; i < VEC; i++) { \
      float x = v[i];               \
      v[i] = value;                 \
    }                               \
    break;
  switch (op) {
    CASE(0, x + p)
    CASE(1, x - p)
    CASE(2, x * p)
    CASE(3, x / p)
    CASE(4, p - x)
    CASE(5, fabsf(x))
    CASE(6, sqrtf(x))
    CASE(7, (x < p ? p : x) > q ? q : x < p ? p : x)  // NaN stays, and the upper limit wins
    CASE(8, rintf(x))
    CASE(9, x * exact_sigmoid(x))
    CASE(10, gelu_erf(x))
    CASE(11, exact_gelu_tanh(x))
    CASE(12, x * exact_sigmoid(1.702f * x))
    CASE(13, x > 0.f || x != x ? x : 0.f)
    CASE(14, x < 0.f ? 0.2f * x : x)
    CASE(15, x * tanhf(log1pf(expf(x))))
    CASE(16, tanhf(x))
    CASE(17, exact_sigmoid(x))
  }
#undef CASE
  span.store(to, v);
}

// Every element the same.
extern "C" __global__ void __launch_bounds__(256) fill(Element* to, float value, i64 total) {
  after_others();
  float v[VEC];
#pragma unroll
  for (int i = 0; i < VEC; i++) v[i] = value;
  i64 stride = (i64)gridDim.x * blockDim.x * VEC;
  for (i64 first = thread_number() * VEC; first < total; first += stride) {
    if (first + VEC <= total) {
      Pack<TY>::store(to + first, v);
    } else {
      for (i64 i = first; i < total; i++) to[i] = TY::store(value);
    }
  }
}

// ---- samplers ------------------------------------------------------------------------------------------------------

// Classifier-free guidance: the prediction without the prompt, and `scale` times what the prompt changes.
extern "C" __global__ void __launch_bounds__(256) guide(Element* to, const Element* cond, const Element* uncond, i64 total, float scale) {
  after_others();
  Span span(total);
  float c[VEC], u[VEC];
  span.load(c, cond);
  span.load(u, uncond);
#pragma unroll
  for (int i = 0; i < VEC; i++) u[i] += scale * (c[i] - u[i]);
  span.store(to, u);
}

// Euler's step from one noise level to another: x + (x - denoised) / sigma * change. `to` may be `x`.
extern "C" __global__ void __launch_bounds__(256) euler(Element* to, const Element* x, const Element* denoised, i64 total, float sigma, float change) {
  after_others();
  Span span(total);
  float v[VEC], d[VEC];
  span.load(v, x);
  span.load(d, denoised);
#pragma unroll
  for (int i = 0; i < VEC; i++) v[i] += (v[i] - d[i]) / sigma * change;
  span.store(to, v);
}

// ---- formats -------------------------------------------------------------------------------------------------------

// Eight elements of a format: one pack, or two.
template <class T> DI void load_eight(float (&v)[8], const typename T::Store* from) {
  if constexpr (Pack<T>::SIZE == 8) {
    Pack<T>::load(v, from);
  } else {
    float4 low = *(const float4*)from, high = *(const float4*)(from + 4);
    v[0] = low.x; v[1] = low.y; v[2] = low.z; v[3] = low.w;
    v[4] = high.x; v[5] = high.y; v[6] = high.z; v[7] = high.w;
  }
}
template <class T> DI void store_eight(typename T::Store* to, const float (&v)[8]) {
  if constexpr (Pack<T>::SIZE == 8) {
    Pack<T>::store(to, v);
  } else {
    *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
    *(float4*)(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
  }
}

template <class T> constexpr float LARGEST = 0.f;
template <> constexpr float LARGEST<F16> = 65504.f;
template <> constexpr float LARGEST<BF16> = 3.3895314e38f;
// Finite numbers stay finite: masks are full of the lowest f32, and rows of minus infinities have no softmax.
template <class T> DI float saturated(float v) {
  if constexpr (sizeof(typename T::Store) == 4) return v;
  const float most = LARGEST<T>, infinity = __uint_as_float(0x7f800000u);
  if (v > most && v < infinity) return most;
  if (v < -most && v > -infinity) return -most;
  return v;
}

// From another format to the module's. `from` may be main memory that the device can read; an f32 keeps its bits.
template <class T> DI void convert(Element* to, const typename T::Store* from, i64 total) {
  i64 stride = (i64)gridDim.x * blockDim.x * 8;
  for (i64 first = thread_number() * 8; first < total; first += stride) {
    if (first + 8 <= total) {
      float v[8];
      load_eight<T>(v, from + first);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = saturated<TY>(v[i]);
      store_eight<TY>(to + first, v);
    } else {
      for (i64 i = first; i < total; i++) to[i] = TY::store(saturated<TY>(T::load(from[i])));
    }
  }
}
extern "C" __global__ void __launch_bounds__(256) from_f32(const float* from, Element* to, i64 total) { after_others(); convert<F32>(to, from, total); }
extern "C" __global__ void __launch_bounds__(256) from_f16(const u16* from, Element* to, i64 total) { after_others(); convert<F16>(to, from, total); }
extern "C" __global__ void __launch_bounds__(256) from_bf16(const u16* from, Element* to, i64 total) { after_others(); convert<BF16>(to, from, total); }
