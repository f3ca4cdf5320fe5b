// What follows a product: out = gate * act(y + bias + per_item) + residual, the last three of the element type and optional, the bias f32.
#pragma once
#include "common.cuh"

// The numbers of `nn::Act`.
enum { ACT_NONE = 0, ACT_SILU = 1, ACT_GELU = 2, ACT_GELU_TANH = 3, ACT_QUICK_GELU = 4, ACT_RELU = 5, ACT_LEAKY = 6 };

// x * sigmoid(z): about 1e-6 of relative error, enough for sixteen bits.
DI float sigmoid_times(float x, float z) { return x * reciprocal(1.f + ex2(-1.44269504f * z)); }
// GELU by Abramowitz and Stegun 7.1.26: the share of the normal distribution to 1e-7, in a dozen instructions. z^2 is x^2 / 2 in powers of two.
DI float gelu_fast(float x) {
  float z = fabsf(x) * 0.84932180f, t = reciprocal(1.f + 0.27273926f * z);
  float p = t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
  return fmaxf(x, 0.f) - fabsf(x) * (p * ex2(-z * z));
}
// One branch for all the numbers, not one for each. No `max` in the last two: NaN stays NaN.
template <int COUNT> DI void activate_fast(float (&x)[COUNT], int act) {
#define EACH(...) _Pragma("unroll") for (int i = 0; i < COUNT; i++) x[i] = __VA_ARGS__; break;
  switch (act) {
    case ACT_SILU: EACH(sigmoid_times(x[i], x[i]))
    case ACT_GELU: EACH(gelu_fast(x[i]))
    case ACT_GELU_TANH: EACH(sigmoid_times(x[i], 1.5957691216f * (x[i] + 0.044715f * x[i] * x[i] * x[i])))
    case ACT_QUICK_GELU: EACH(sigmoid_times(x[i], 1.702f * x[i]))
    case ACT_RELU: EACH(x[i] < 0.f ? 0.f : x[i])
    case ACT_LEAKY: EACH(x[i] < 0.f ? 0.2f * x[i] : x[i])
    default: break;
  }
#undef EACH
}
// The same to the last bits of f32.
DI float activate_exact(float x, int act) {
  switch (act) {
    case ACT_SILU: return x / (1.f + expf(-x));
    case ACT_GELU: return 0.5f * x * (1.f + erff(x * 0.70710678118f));
    case ACT_GELU_TANH: return x / (1.f + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
    case ACT_QUICK_GELU: return x / (1.f + expf(-1.702f * x));
    case ACT_RELU: return x < 0.f ? 0.f : x;
    case ACT_LEAKY: return x < 0.f ? 0.2f * x : x;
    default: return x;
  }
}

template <class S> struct After {
  const float* bias;      // N numbers
  const S* per_item;      // (items, N), added before the activation
  const S* gate;          // (items, N), multiplied with after the activation
  const S* residual;      // (M, N), added last
  S* out;                 // (M, N)
  int act, rows_per_item; // item = row / rows_per_item
  int act_from;           // the first column with an activation: a multiple of 8, and of the tile's width
  const float* more;      // N numbers, added as the bias is: of a layer whose product is in the same sums
};
// What the sums of bytes stand for: the numbers of rows and columns that they are multiplied with first. No rows: sums that are whole already.
struct Scales { const float* row; const float* column; };
// Products of one input with up to three weights of the same size: the biases and results of the others, and the tiles of columns that each has.
// A bias without a result is added to the first.
struct Others { const float* bias[2]; u16* out[2]; int each; };
// Tiles of columns of all of them.
DI int columns_all(const Others& o, int count) { return o.out[0] ? (o.out[1] ? 3 : 2) * count : count; }
// Which of them a tile of columns belongs to: `ni` becomes its place there.
DI int which_of(const Others& o, int& ni) {
  int which = o.out[0] ? quotient(ni, o.each) : 0;
  ni -= which * o.each;
  return which;
}
DI After<u16> choose(const After<u16>& f, const Others& o, int& ni) {
  After<u16> a = f;
  if (!o.out[0]) a.more = o.bias[0];
  int which = which_of(o, ni);
  if (which == 1) { a.bias = o.bias[0]; a.out = o.out[0]; }
  if (which == 2) { a.bias = o.bias[1]; a.out = o.out[1]; }
  return a;
}

// Kernel parameters of the above, in this order, and what makes it of them.
#define AFTER_PARAMETERS(S) const float* bias, const S* per_item, const S* gate, const S* residual, S* out, int act, int rows_per_item, int act_from
#define SCALES_PARAMETERS const float* row_scale, const float* column_scale
#define OTHERS_PARAMETERS const float* bias1, u16* out1, const float* bias2, u16* out2, int each
#define OTHERS_VALUES { { bias1, bias2 }, { out1, out2 }, each }
#define AFTER_VALUES { bias, per_item, gate, residual, out, act, rows_per_item, act_from, nullptr }

// Eight elements of sixteen bits, of which the first `valid` are there. `whole`: rows are a multiple of 16 bytes long.
DI void load8(u32 (&v)[4], const u16* from, int valid, bool whole) {
  v[0] = v[1] = v[2] = v[3] = 0;
  if (valid <= 0) return;
  if (whole) {
    uint4 w = *(const uint4*)from;
    v[0] = w.x; v[1] = w.y; v[2] = w.z; v[3] = w.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (2 * i < valid) v[i] = from[2 * i];
    if (2 * i + 1 < valid) v[i] |= (u32)from[2 * i + 1] << 16;
  }
}
DI void store8(u16* to, const u32 (&v)[4], int valid, bool whole) {
  if (valid <= 0) return;
  if (whole) { *(uint4*)to = make_uint4(v[0], v[1], v[2], v[3]); return; }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (2 * i < valid) to[2 * i] = (u16)v[i];
    if (2 * i + 1 < valid) to[2 * i + 1] = (u16)(v[i] >> 16);
  }
}
DI float2 bias_pair(const float* bias, int column, int n) {
  float2 b = make_float2(0.f, 0.f);
  if (column < n) b.x = bias[column];
  if (column + 1 < n) b.y = bias[column + 1];
  return b;
}

// Finishes and writes eight columns of a row, from c on. `row` exists and c < n.
template <class T> DI void finish8(const After<u16>& f, float (&x)[8], i64 row, int c, int n) {
  bool whole = (n & 7) == 0;
  i64 item = f.per_item || f.gate ? (i64)((u32)row / (u32)f.rows_per_item) * n : 0;
  u32 o[4];
  if (f.bias) {
#pragma unroll
    for (int i = 0; i < 8; i++) if (c + i < n) x[i] += f.bias[c + i];
  }
  if (f.more) {
#pragma unroll
    for (int i = 0; i < 8; i++) if (c + i < n) x[i] += f.more[c + i];
  }
  if (f.per_item) {
    load8(o, f.per_item + item + c, n - c, whole);
#pragma unroll
    for (int i = 0; i < 4; i++) { x[2 * i] += T::lo(o[i]); x[2 * i + 1] += T::hi(o[i]); }
  }
  if (f.act && c >= f.act_from) activate_fast(x, f.act);
  if (f.gate) {
    load8(o, f.gate + item + c, n - c, whole);
#pragma unroll
    for (int i = 0; i < 4; i++) { x[2 * i] *= T::lo(o[i]); x[2 * i + 1] *= T::hi(o[i]); }
  }
  if (f.residual) {
    load8(o, f.residual + row * n + c, n - c, whole);
#pragma unroll
    for (int i = 0; i < 4; i++) { x[2 * i] += T::lo(o[i]); x[2 * i + 1] += T::hi(o[i]); }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) o[i] = T::pack(x[2 * i], x[2 * i + 1]);
  store8(f.out + row * n + c, o, n - c, whole);
}
// Eight sums with what they stand for, from column c on.
DI void scale8(const Scales& by, float (&x)[8], i64 row, int c, int n) {
  float r = by.row[row];
#pragma unroll
  for (int i = 0; i < 8; i++) if (c + i < n) x[i] *= r * by.column[c + i];
}
// x * gelu(g) of eight columns with their biases; n is half of the columns of the product.
template <class T> DI void finish8_geglu(const After<u16>& f, float (&x)[8], float (&g)[8], i64 row, int c, int n) {
  if (f.bias) {
#pragma unroll
    for (int i = 0; i < 8; i++) if (c + i < n) { x[i] += f.bias[c + i]; g[i] += f.bias[n + c + i]; }
  }
  u32 o[4];
#pragma unroll
  for (int i = 0; i < 4; i++) o[i] = T::pack(x[2 * i] * gelu_fast(g[2 * i]), x[2 * i + 1] * gelu_fast(g[2 * i + 1]));
  store8(f.out + row * n + c, o, n - c, (n & 7) == 0);
}
DI void add4(float* to, const float* from) { float4 v = *(const float4*)from; to[0] += v.x; to[1] += v.y; to[2] += v.z; to[3] += v.w; }

// The tile that block `u` makes: down `group` tiles of rows, then the next columns, so that blocks at work share what they read.
DI void tile_place(int u, int row_tiles, int column_tiles, int group, int& mi, int& ni) {
  int per = group * column_tiles, g = quotient(u, per), rest = u - g * per, rows = min(group, row_tiles - g * group);
  ni = quotient(rest, rows);
  mi = g * group + rest - ni * rows;
}
// Rows of a tile are pixels of a box of 2^wlog x 2^hlog pixels in 128 >> (wlog + hlog) pictures. A matrix is a picture of one row.
// With four phases the boxes are those of a picture of half the height and width, once for each of the four pixels of the result over one of its pixels.
struct Boxes { int height, width, count, wlog, hlog, phases; };
DI int boxes_across(const Boxes& b) { return (b.width + (1 << b.wlog) - 1) >> b.wlog; }
DI int boxes_down(const Boxes& b) { return (b.height + (1 << b.hlog) - 1) >> b.hlog; }
DI int boxes_deep(const Boxes& b) { int log = 7 - b.wlog - b.hlog; return (b.count + (1 << log) - 1) >> log; }
DI int boxes_all(const Boxes& b) { return boxes_across(b) * boxes_down(b) * boxes_deep(b) * b.phases; }
// First column, row and picture of a box, and its phase: 2 * row + column of the pixel among the four.
DI void box_corner(const Boxes& b, int mi, int& x, int& y, int& z, int& phase) {
  int across = boxes_across(b), down = boxes_down(b), rest = quotient(mi, across);
  x = (mi - rest * across) << b.wlog;
  z = quotient(rest, down);
  y = (rest - z * down) << b.hlog;
  phase = 0;
  if (b.phases > 1) { int deep = boxes_deep(b); phase = quotient(z, deep); z -= phase * deep; }
  z *= 128 >> (b.wlog + b.hlog);
}
// The output row of row r of a box, and whether there is one.
DI i64 box_row(const Boxes& b, int x0, int y0, int z0, int phase, int r, bool& ok) {
  int x = x0 + (r & ((1 << b.wlog) - 1)), y = y0 + ((r >> b.wlog) & ((1 << b.hlog) - 1)), z = z0 + (r >> (b.wlog + b.hlog));
  ok = x < b.width && y < b.height && z < b.count;
  if (b.phases > 1) return (((i64)z * b.height + y) * 2 + (phase >> 1)) * b.width * 2 + 2 * x + (phase & 1);
  return ((i64)z * b.height + y) * b.width + x;
}
