// What networks over pictures do besides convolutions: means of squares, kernels and slopes of channels, attention among channels, resampling.
#include "vectors.cuh"

// ---- (b, h, w, c): V neighbouring channels for each thread ---------------------------------------------------------------------

// Means of squares of `size` by `size` pixels; `total` counts threads.
template <int V> DI void pool(Element* to, const Element* from, i64 total, i64 h, i64 w, int size, int out_h, int out_w, int groups) {
  i64 at = thread_number();
  if (at >= total) return;
  i64 rest = at / groups;
  int group = (int)(at - rest * groups);
  i64 line = rest / out_w;
  int x = (int)(rest - line * out_w);
  i64 item = line / out_h;
  int y = (int)(line - item * out_h);
  i64 c = (i64)groups * V;
  float sum[V] = {};
  for (int dy = 0; dy < size; dy++) {
    const Element* pixel = from + ((item * h + (i64)y * size + dy) * w + (i64)x * size) * c + group * V;
    for (int dx = 0; dx < size; dx++, pixel += c) {
      float v[V];
      load_some<V>(v, pixel);
#pragma unroll
      for (int i = 0; i < V; i++) sum[i] += v[i];
    }
  }
  float share = 1.f / ((float)size * (float)size);
#pragma unroll
  for (int i = 0; i < V; i++) sum[i] *= share;
  store_some<V>(to + at * V, sum);
}
extern "C" __global__ void __launch_bounds__(256) pool_packs(Element* to, const Element* from, i64 total, i64 h, i64 w, int size, int out_h, int out_w, int groups) {
  after_others();
  pool<VEC>(to, from, total, h, w, size, out_h, out_w, groups);
}
extern "C" __global__ void __launch_bounds__(256) pool_elements(Element* to, const Element* from, i64 total, i64 h, i64 w, int size, int out_h, int out_w, int groups) {
  after_others();
  pool<1>(to, from, total, h, w, size, out_h, out_w, groups);
}

// A kernel of `side` by `side` for each channel, zeros around the picture. `taps` is (side * side, c); `bias` has c values or is null.
template <int V> DI void depthwise_by(Element* to, const Element* from, const Element* taps, const Element* bias, i64 total, int h, int w, int side, int groups) {
  i64 at = thread_number();
  if (at >= total) return;
  i64 rest = at / groups;
  int channel = (int)(at - rest * groups) * V;
  i64 line = rest / w;
  int x = (int)(rest - line * w);
  i64 item = line / h;
  int y = (int)(line - item * h), half = side / 2;
  i64 c = (i64)groups * V;
  float sum[V] = {};
  if (bias) load_some<V>(sum, bias + channel);
  for (int dy = 0; dy < side; dy++) {
    int from_y = y + dy - half;
    if (from_y < 0 || from_y >= h) continue;
    const Element* row = from + (item * h + from_y) * w * c + channel;
    for (int dx = 0; dx < side; dx++) {
      int from_x = x + dx - half;
      if (from_x < 0 || from_x >= w) continue;
      float v[V], tap[V];
      load_some<V>(v, row + from_x * c);
      load_some<V>(tap, taps + (dy * side + dx) * c + channel);
#pragma unroll
      for (int i = 0; i < V; i++) sum[i] += v[i] * tap[i];
    }
  }
  store_some<V>(to + at * V, sum);
}
extern "C" __global__ void __launch_bounds__(256) depthwise_packs(Element* to, const Element* from, const Element* taps, const Element* bias, i64 total, int h, int w, int side, int groups) {
  after_others();
  depthwise_by<VEC>(to, from, taps, bias, total, h, w, side, groups);
}
extern "C" __global__ void __launch_bounds__(256) depthwise_elements(Element* to, const Element* from, const Element* taps, const Element* bias, i64 total, int h, int w, int side, int groups) {
  after_others();
  depthwise_by<1>(to, from, taps, bias, total, h, w, side, groups);
}

// Negative values times the slope of their channel; `width` is 1 where there is one for all. `to` may be `from`.
extern "C" __global__ void __launch_bounds__(256) slopes(Element* to, const Element* from, const Element* slope, i64 total, int width) {
  after_others();
  Span span(total);
  if (span.count == 0) return;
  float v[VEC];
  span.load(v, from);
  int channel = (int)(span.first % width);
#pragma unroll
  for (int i = 0; i < VEC; i++) {
    if (v[i] < 0.f) v[i] *= TY::load(slope[channel]);
    channel = channel + 1 == width ? 0 : channel + 1;
  }
  span.store(to, v);
}

// ---- attention among channels --------------------------------------------------------------------------------------------------

// Products of 16 channels of the queries with 16 of the keys over a part of the tokens, and squares of both for their lengths. One block for
// (item and head, part, row of tiles, column of tiles), the last one fastest. A part of the sums is d * d products, d squares of the
// queries, d of the keys; they are (items * heads, splits, that).
extern "C" __global__ void __launch_bounds__(256) channel_products(float* sums, const Element* q, const Element* k, i64 tokens, int heads, int d, i64 each, int splits) {
  after_others();
  __shared__ float queries[32][17], keys[32][17];
  int tiles = (d + 15) / 16;
  u32 block = blockIdx.x;
  int first_j = (int)(block % tiles) * 16;
  block /= tiles;
  int first_i = (int)(block % tiles) * 16;
  block /= tiles;
  i64 part = block % splits, pair = block / splits;
  i64 item = pair / heads, head = pair % heads, width = (i64)heads * d;
  i64 start = part * each, end = start + each < tokens ? start + each : tokens;
  const i64 base = item * tokens * width + head * d;
  int i = threadIdx.x >> 4, j = threadIdx.x & 15;
  float product = 0.f, square_q = 0.f, square_k = 0.f;
  for (i64 token = start; token < end; token += 32) {
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 32; half += 16) {
      i64 t = token + half + i;  // sixteen threads read sixteen neighbouring channels of one token
      bool there = t < end;
      queries[half + i][j] = there && first_i + j < d ? TY::load(q[base + t * width + first_i + j]) : 0.f;
      keys[half + i][j] = there && first_j + j < d ? TY::load(k[base + t * width + first_j + j]) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < 32; t++) {
      float a = queries[t][i], b = keys[t][j];
      product += a * b;
      square_q += a * a;
      square_k += b * b;
    }
  }
  i += first_i;
  j += first_j;
  if (i >= d || j >= d) return;
  float* to = sums + (pair * splits + part) * ((i64)d * d + 2 * d);
  to[(i64)i * d + j] = product;
  if (j == 0) to[(i64)d * d + i] = square_q;
  if (i == 0) to[(i64)d * d + d + j] = square_k;
}

// How much each channel takes of each other: (items * heads, d, d). A warp for each row.
extern "C" __global__ void __launch_bounds__(256) channel_scores(float* scores, const float* sums, const Element* factors, i64 rows, int heads, int d, int splits) {
  after_others();
  i64 row = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  if (row >= rows) return;
  int lane = threadIdx.x & 31;
  i64 pair = row / d;
  int i = (int)(row - pair * d);
  i64 size = (i64)d * d + 2 * d;
  const float* parts = sums + pair * splits * size;
  float* to = scores + row * d;
  auto total = [&](i64 at) {
    float sum = 0.f;
    for (int s = 0; s < splits; s++) sum += parts[s * size + at];
    return sum;
  };
  float factor = TY::load(factors[pair % heads]);
  float length = fmaxf(sqrtf(total((i64)d * d + i)), 1e-12f);
  float most = __uint_as_float(0xff800000u);
  for (int j = lane; j < d; j += 32) {
    float other = fmaxf(sqrtf(total((i64)d * d + d + j)), 1e-12f);
    // One after another: the product of two tiny lengths is no f32.
    float score = total((i64)i * d + j) / length / other * factor;
    to[j] = score;
    most = fmaxf(most, score);
  }
  most = join_warp(most, [](float a, float b) { return fmaxf(a, b); });
  float all = 0.f;
  for (int j = lane; j < d; j += 32) all += expf(to[j] - most);
  all = join_warp(all, [](float a, float b) { return a + b; });
  for (int j = lane; j < d; j += 32) to[j] = expf(to[j] - most) / all;
}

// Every channel as the mixture of those of its head that the scores say; a thread for each element.
extern "C" __global__ void __launch_bounds__(256) channel_mix(Element* to, const Element* v, const float* scores, i64 total, i64 tokens, int heads, int d) {
  after_others();
  i64 at = thread_number();
  if (at >= total) return;
  i64 width = (i64)heads * d, row = at / width;
  int channel = (int)(at - row * width), head = channel / d;
  i64 item = row / tokens;
  const float* score = scores + ((item * heads + head) * d + (channel - head * d)) * d;
  const Element* values = v + row * width + (i64)head * d;
  float sum = 0.f;
  for (int j = 0; j < d; j++) sum += score[j] * TY::load(values[j]);
  to[at] = TY::store(sum);
}

// ---- resampling of (b, c, h, w) ------------------------------------------------------------------------------------------------

// Every row to another width: `taps` old positions and weights for each new one. The rows between the two passes are f32.
extern "C" __global__ void __launch_bounds__(256) resample_across(float* to, const Element* from, const u32* index, const float* weight, i64 total, i64 w, i64 width, int taps) {
  after_others();
  i64 at = thread_number();
  if (at >= total) return;
  i64 row = at / width, x = at - row * width;
  const Element* line = from + row * w;
  index += x * taps;
  weight += x * taps;
  float sum = TY::load(line[index[0]]) * weight[0];
  for (int i = 1; i < taps; i++) sum += TY::load(line[index[i]]) * weight[i];
  to[at] = sum;
}

// Every column to another height.
extern "C" __global__ void __launch_bounds__(256) resample_down(Element* to, const float* from, const u32* index, const float* weight, i64 total, i64 h, i64 height, i64 width, int taps) {
  after_others();
  i64 at = thread_number();
  if (at >= total) return;
  i64 row = at / width, x = at - row * width;
  i64 plane = row / height, y = row - plane * height;
  const float* column = from + plane * h * width + x;
  index += y * taps;
  weight += y * taps;
  float sum = 0.f;
  for (int i = 0; i < taps; i++) sum += column[(i64)index[i] * width] * weight[i];
  to[at] = TY::store(sum);
}

// Means over windows: window i of n is floor(i * size / n) .. ceil((i + 1) * size / n).
extern "C" __global__ void __launch_bounds__(256) window_means(Element* to, const Element* from, i64 total, i64 h, i64 w, i64 height, i64 width) {
  after_others();
  i64 at = thread_number();
  if (at >= total) return;
  i64 row = at / width, x = at - row * width;
  i64 plane = row / height, y = row - plane * height;
  i64 top = y * h / height, bottom = ((y + 1) * h + height - 1) / height;
  i64 left = x * w / width, right = ((x + 1) * w + width - 1) / width;
  const Element* picture = from + plane * h * w;
  float sum = 0.f;
  for (i64 i = top; i < bottom; i++) {
    // A sum for each line, so that large windows do not add small numbers to a large one.
    float line = 0.f;
    for (i64 j = left; j < right; j++) line += TY::load(picture[i * w + j]);
    sum += line;
  }
  to[at] = TY::store(sum / (float)((bottom - top) * (right - left)));
}
