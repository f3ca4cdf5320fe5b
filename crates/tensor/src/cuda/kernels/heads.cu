// What transformers do between a product and attention, in one pass: queries, keys and values out of one tensor, norms of heads, rotary positions,
// joined with those of other tokens. And what follows attention in blocks whose layers run side by side.
#include "vectors.cuh"

// Of one part of the tokens. Queries, keys and values are the first heads * d of rows of `row_width` elements at `from_q`, `from_k`, `from_v` (which
// may be rows of one tensor); they go to tokens first .. first + tokens of (items, all, heads * d). LANES threads for each head of a token, of queries, keys or values.
// `query` and `key` are the weights of the norms, or null; `cosines` and `sines` are (all, d / 2), or (items, all, d / 2) with `item_angles`
// rows for each item, or null. `apart`: pairs are half a head apart, not neighbours. `v` may be null.
template <int LANES>
DI void join_heads(Element* q, Element* k, Element* v, const Element* from_q, const Element* from_k, const Element* from_v, const float* query, const float* key, const float* cosines, const float* sines, i64 rows, int tokens, int all, int first, i64 row_width, int heads, int d, int item_angles, float eps, int apart) {
  i64 row = thread_number() / LANES;
  int lane = threadIdx.x % LANES, place = lane * VEC;
  // Rows in the order of memory: token, then queries, keys, values, then heads.
  i64 rest = row / heads;
  int head = (int)(row - rest * heads);
  // Without a place for values they stay where they are.
  i64 token_row = v ? rest / 3 : rest / 2;
  int which = (int)(rest - token_row * (v ? 3 : 2));
  i64 item = token_row / tokens;
  i64 token = token_row - item * tokens + first;
  // Threads without an element stay: the others exchange values with all of their warp.
  bool active = row < rows && place < d;
  float x[VEC] = {};
  const Element* from = which == 0 ? from_q : which == 1 ? from_k : from_v;
  if (active) Pack<TY>::load(x, from + token_row * row_width + (i64)head * d + place);
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < VEC; i++) squares += x[i] * x[i];
#pragma unroll
  for (int m = LANES / 2; m > 0; m >>= 1) squares += shxf(squares, m);
  const float* weight = which == 0 ? query : key;
  if (active && which < 2 && weight) {
    float factor = 1.f / sqrtf(squares / (float)d + eps);
#pragma unroll
    for (int i = 0; i < VEC; i++) x[i] = x[i] * factor * weight[place + i];
  }
  i64 angles = (item * item_angles + token) * (d / 2);
  bool turned = active && which < 2 && cosines;
  if (apart) {
    int half = d / 2 / VEC;  // in threads
    int partner = lane < half ? lane + half : lane < 2 * half ? lane - half : lane;
    int source = (threadIdx.x & 31) - lane + partner;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
      float other = __shfl_sync(0xffffffffu, x[i], source);
      if (turned) {
        i64 at = angles + (lane < half ? place : place - d / 2) + i;
        x[i] = lane < half ? x[i] * cosines[at] - other * sines[at] : other * sines[at] + x[i] * cosines[at];
      }
    }
  } else if (turned) {
#pragma unroll
    for (int i = 0; i < VEC; i += 2) {
      float c = cosines[angles + (place + i) / 2], s = sines[angles + (place + i) / 2], a = x[i], b = x[i + 1];
      x[i] = a * c - b * s;
      x[i + 1] = a * s + b * c;
    }
  }
  Element* to = which == 0 ? q : which == 1 ? k : v;
  if (active) Pack<TY>::store(to + ((item * all + token) * heads + head) * d + place, x);
}
#define JOIN_HEADS(name, LANES)                                                                                                              \
  extern "C" __global__ void __launch_bounds__(256) name(Element* q, Element* k, Element* v, const Element* from_q, const Element* from_k,    \
                                                         const Element* from_v, const float* query, const float* key, const float* cosines,   \
                                                         const float* sines, i64 rows, int tokens, int all, int first, i64 row_width,         \
                                                         int heads, int d, int item_angles, float eps, int apart) { after_others();                           \
    join_heads<LANES>(q, k, v, from_q, from_k, from_v, query, key, cosines, sines, rows, tokens, all, first, row_width, heads, d,             \
                      item_angles, eps, apart);                                                                                               \
  }
JOIN_HEADS(join_heads_4, 4)
JOIN_HEADS(join_heads_8, 8)
JOIN_HEADS(join_heads_16, 16)
JOIN_HEADS(join_heads_32, 32)

// What attention has seen, and behind it, row by row, an activation of the columns of `wide` from `first` on. All numbers are of packs.
// kind 0: GELU by tanh; 1: silu(a) * b of the halves of the columns; 2: silu(b) * a; 3: what they are.
extern "C" __global__ void __launch_bounds__(256) join_activated(Element* to, const Element* seen, const Element* wide, i64 total, int left, int right, int wide_row, int first, int kind) {
  after_others();
  i64 at = thread_number();
  if (at >= total) return;
  i64 row = at / (left + right);
  int column = (int)(at - row * (left + right));
  if (column < left) {
    ((uint4*)to)[at] = ((const uint4*)seen)[row * left + column];
    return;
  }
  const Element* from = wide + (row * wide_row + first + (column - left)) * VEC;
  float v[VEC];
  Pack<TY>::load(v, from);
  if (kind == 0) {
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = 0.5f * v[i] * (1.f + tanhf(0.7978845608f * (v[i] + 0.044715f * v[i] * v[i] * v[i])));
  } else if (kind < 3) {
    float w[VEC];
    Pack<TY>::load(w, from + (i64)right * VEC);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
      float gate = kind == 1 ? v[i] : w[i], value = kind == 1 ? w[i] : v[i];
      v[i] = gate / (1.f + expf(-gate)) * value;
    }
  }
  Pack<TY>::store(to + at * VEC, v);
}
