// Gated activations and rotary positions.
#include "vectors.cuh"

// The first half of a row times the GELU of the second; V elements for each thread, `groups` of them in half a row.
template <int V> DI void geglu_by(Element* to, const Element* from, i64 total, int groups) {
  i64 at = thread_number();
  if (at >= total) return;
  i64 row = at / groups;
  const Element* value = from + (row * groups + at) * V;  // twice the rows before, and the place in this one
  float v[V], gate[V];
  load_some<V>(v, value);
  load_some<V>(gate, value + (i64)groups * V);
#pragma unroll
  for (int i = 0; i < V; i++) v[i] *= gelu_erf(gate[i]);
  store_some<V>(to + at * V, v);
}
extern "C" __global__ void __launch_bounds__(256) geglu_packs(Element* to, const Element* from, i64 total, int groups) { after_others(); geglu_by<VEC>(to, from, total, groups); }
extern "C" __global__ void __launch_bounds__(256) geglu_elements(Element* to, const Element* from, i64 total, int groups) { after_others(); geglu_by<1>(to, from, total, groups); }

// ---- rotary positions ----------------------------------------------------------------------------------------------------------

// x is (rows, heads, 2 * half), the tables (positions, half) in f32; row r takes the angles of position r % positions.

// Neighbours are a pair. V elements for each thread: V / 2 pairs.
template <int V> DI void rope_neighbours(Element* to, const Element* from, const float* cosines, const float* sines, i64 total, i64 positions, int heads, int half) {
  i64 at = thread_number();
  if (at >= total) return;
  int groups = 2 * half / V;
  i64 token_head = at / groups;
  int first = (int)(at - token_head * groups) * (V / 2);
  i64 angles = (token_head / heads) % positions * half + first;
  float v[V], c[V / 2], s[V / 2];
  if constexpr (V == VEC) {
    Pack<TY>::load(v, from + at * V);
  } else {
    v[0] = TY::load(from[at * 2]);
    v[1] = TY::load(from[at * 2 + 1]);
  }
  load_floats(c, cosines + angles);
  load_floats(s, sines + angles);
#pragma unroll
  for (int i = 0; i < V / 2; i++) {
    float x = v[2 * i], y = v[2 * i + 1];
    v[2 * i] = x * c[i] - y * s[i];
    v[2 * i + 1] = x * s[i] + y * c[i];
  }
  if constexpr (V == VEC) {
    Pack<TY>::store(to + at * V, v);
  } else {
    to[at * 2] = TY::store(v[0]);
    to[at * 2 + 1] = TY::store(v[1]);
  }
}
extern "C" __global__ void __launch_bounds__(256) rope_interleaved_packs(Element* to, const Element* from, const float* cosines, const float* sines, i64 total, i64 positions, int heads, int half) {
  after_others();
  rope_neighbours<VEC>(to, from, cosines, sines, total, positions, heads, half);
}
extern "C" __global__ void __launch_bounds__(256) rope_interleaved_elements(Element* to, const Element* from, const float* cosines, const float* sines, i64 total, i64 positions, int heads, int half) {
  after_others();
  rope_neighbours<2>(to, from, cosines, sines, total, positions, heads, half);
}

// Channel i of a head and channel i + half are a pair. V pairs for each thread.
template <int V> DI void rope_halves(Element* to, const Element* from, const float* cosines, const float* sines, i64 total, i64 positions, int heads, int half) {
  i64 at = thread_number();
  if (at >= total) return;
  int groups = half / V;
  i64 token_head = at / groups;
  int first = (int)(at - token_head * groups) * V;
  i64 angles = (token_head / heads) % positions * half + first;
  i64 place = token_head * 2 * half + first;
  float x[V], y[V], c[V], s[V], u[V];
  load_some<V>(x, from + place);
  load_some<V>(y, from + place + half);
  load_floats(c, cosines + angles);
  load_floats(s, sines + angles);
#pragma unroll
  for (int i = 0; i < V; i++) {
    u[i] = x[i] * c[i] - y[i] * s[i];
    y[i] = x[i] * s[i] + y[i] * c[i];
  }
  store_some<V>(to + place, u);
  store_some<V>(to + place + half, y);
}
extern "C" __global__ void __launch_bounds__(256) rope_half_packs(Element* to, const Element* from, const float* cosines, const float* sines, i64 total, i64 positions, int heads, int half) {
  after_others();
  rope_halves<VEC>(to, from, cosines, sines, total, positions, heads, half);
}
extern "C" __global__ void __launch_bounds__(256) rope_half_elements(Element* to, const Element* from, const float* cosines, const float* sines, i64 total, i64 positions, int heads, int half) {
  after_others();
  rope_halves<1>(to, from, cosines, sines, total, positions, heads, half);
}
