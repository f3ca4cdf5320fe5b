// Weights as they are in files to elements in the order that products read: (out, position, channel), channels padded with zeros.
// The formulas are those of crates/tensor/src/{convert.rs,weights/blocks.rs,formats/rows.rs}.
#include "common.cuh"

typedef TY::Store S;

DI float half_at(const u8* p) { return half_to_float((u16)(p[0] | p[1] << 8)); }
DI float float_at(const u8* p) { return __uint_as_float((u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24); }
// An E4M3 shifted by one bit less is an f16 whose exponent counts from 15 and not from 7.
DI float e4m3(u32 b) {
  if ((b & 0x7f) == 0x7f) return __uint_as_float(0x7fc00000u);
  return 256.f * half_to_float((u16)((b & 0x80) << 8 | (b & 0x7f) << 7));
}
DI float e5m2(u32 b) { return half_to_float((u16)(b << 8)); }
// 0, 0.5, 1, 1.5, 2, 3, 4, 6 and the same below zero.
DI float e2m1(u32 b) {
  u32 e = b >> 1 & 3, m = b & 1;
  float v = e ? (float)(2 + m) * (float)(1u << e) * 0.25f : 0.5f * m;
  return b & 8 ? -v : v;
}
// The part of a pair of four bits; the first of a pair is in the lower half.
DI u32 nibble(const u8* p, int i) { return p[i >> 1] >> ((i & 1) * 4) & 15; }

// What belongs to the rows of a quantised weight, in bytes: the codes, then what groups have, then the scale of the row.
struct Rows { int columns, row_bytes, code_bytes, group_bytes, groups, group, bits, levels, corrected, number; };

// Plain formats: element i.
struct PlainF32 { DI static float at(const u8* p, i64 i) { return ((const float*)p)[i]; } };
struct PlainF16 { DI static float at(const u8* p, i64 i) { return half_to_float(((const u16*)p)[i]); } };
struct PlainBF16 { DI static float at(const u8* p, i64 i) { return bf16_to_float(((const u16*)p)[i]); } };
struct PlainE4M3 { DI static float at(const u8* p, i64 i) { return e4m3(p[i]); } };
struct PlainE5M2 { DI static float at(const u8* p, i64 i) { return e5m2(p[i]); } };

// GGUF: COUNT values in BYTES bytes; value j of a block.
struct Q8_0 { enum { COUNT = 32, BYTES = 34 }; DI static float at(const u8* b, int j) { return (float)(signed char)b[2 + j] * half_at(b); } };
struct Q4_0 { enum { COUNT = 32, BYTES = 18 }; DI static float at(const u8* b, int j) { u32 q = b[2 + (j & 15)]; return ((float)(j < 16 ? q & 15 : q >> 4) - 8.f) * half_at(b); } };
struct Q4_1 { enum { COUNT = 32, BYTES = 20 }; DI static float at(const u8* b, int j) { u32 q = b[4 + (j & 15)]; return half_at(b) * (float)(j < 16 ? q & 15 : q >> 4) + half_at(b + 2); } };
struct Q5_0 {
  enum { COUNT = 32, BYTES = 22 };
  DI static float at(const u8* b, int j) {
    u32 q = b[6 + (j & 15)], high = b[2 + (j >> 3)] >> (j & 7) & 1;
    return ((float)((j < 16 ? q & 15 : q >> 4) | high << 4) - 16.f) * half_at(b);
  }
};
struct Q5_1 {
  enum { COUNT = 32, BYTES = 24 };
  DI static float at(const u8* b, int j) {
    u32 q = b[8 + (j & 15)], high = b[4 + (j >> 3)] >> (j & 7) & 1;
    return half_at(b) * (float)((j < 16 ? q & 15 : q >> 4) | high << 4) + half_at(b + 2);
  }
};
// Scale and minimum of group g, six bits each, in 12 bytes: the last four groups are spread over the spare bits of the first four.
DI void scale_and_min(const u8* p, int g, float& scale, float& least) {
  scale = (float)(g < 4 ? p[g] & 63 : (p[g + 4] & 15) | (p[g - 4] >> 6) << 4);
  least = (float)(g < 4 ? p[g + 4] & 63 : (p[g + 4] >> 4) | (p[g] >> 6) << 4);
}
struct Q4_K {
  enum { COUNT = 256, BYTES = 144 };
  DI static float at(const u8* b, int j) {
    int g = j >> 5; float scale, least;
    scale_and_min(b + 4, g, scale, least);
    u32 q = b[16 + (g >> 1) * 32 + (j & 31)];
    return half_at(b) * scale * (float)(g & 1 ? q >> 4 : q & 15) - half_at(b + 2) * least;
  }
};
struct Q5_K {
  enum { COUNT = 256, BYTES = 176 };
  DI static float at(const u8* b, int j) {
    int g = j >> 5; float scale, least;
    scale_and_min(b + 4, g, scale, least);
    u32 q = b[48 + (g >> 1) * 32 + (j & 31)], high = b[16 + (j & 31)] >> g & 1;
    return half_at(b) * scale * (float)((g & 1 ? q >> 4 : q & 15) + (high << 4)) - half_at(b + 2) * least;
  }
};
struct Q6_K {
  enum { COUNT = 256, BYTES = 210 };
  DI static float at(const u8* b, int j) {
    int part = j >> 7, g = j >> 5 & 3, l = j & 31;
    u32 low = b[64 * part + l + 32 * (g & 1)], high = b[128 + 32 * part + l] >> (2 * g) & 3;
    u32 q = (g & 2 ? low >> 4 : low & 15) | high << 4;
    return half_at(b + 208) * (float)(signed char)b[192 + 8 * part + (l >> 4) + 2 * g] * ((float)q - 32.f);
  }
};
struct Q2_K {
  enum { COUNT = 256, BYTES = 84 };
  DI static float at(const u8* b, int j) {
    int g = j >> 4; u32 q = b[16 + (g >> 3) * 32 + (g & 1) * 16 + (j & 15)] >> ((g & 7) / 2 * 2) & 3;
    return half_at(b + 80) * (float)(b[g] & 15) * (float)q - half_at(b + 82) * (float)(b[g] >> 4);
  }
};
struct Q3_K {
  enum { COUNT = 256, BYTES = 110 };
  DI static float at(const u8* b, int j) {
    int g = j >> 4, column = (g & 1) * 16 + (j & 15);
    u32 low = b[96 + (g & 7)] >> ((g >> 3) * 4) & 15, high = b[104 + (g & 3)] >> ((g >> 2) * 2) & 3;
    u32 q = b[32 + (g >> 3) * 32 + column] >> ((g & 7) / 2 * 2) & 3, third = b[column] >> (g >> 1) & 1;
    // The third bit is set where nothing is taken off.
    return half_at(b + 108) * ((float)(low | high << 4) - 32.f) * ((float)q - (float)(4 - 4 * third));
  }
};
struct Q8_K { enum { COUNT = 256, BYTES = 292 }; DI static float at(const u8* b, int j) { return float_at(b) * (float)(signed char)b[4 + j]; } };
struct TQ1_0 {
  enum { COUNT = 256, BYTES = 54 };
  DI static float at(const u8* b, int j) {
    int place = j < 160 ? j & 31 : j < 240 ? 32 + (j & 15) : 48 + (j & 3);
    int digit = j < 160 ? j >> 5 : j < 240 ? (j - 160) >> 4 : (j - 240) >> 2;
    u32 power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    u32 three = ((b[place] * power & 255) * 3) >> 8;
    return half_at(b + 52) * ((float)three - 1.f);
  }
};
struct TQ2_0 { enum { COUNT = 256, BYTES = 66 }; DI static float at(const u8* b, int j) { return half_at(b + 64) * ((float)(b[(j >> 7) * 32 + (j & 31)] >> ((j & 127) / 32 * 2) & 3) - 1.f); } };
__device__ const signed char UNEVEN[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
struct IQ4_NL { enum { COUNT = 32, BYTES = 18 }; DI static float at(const u8* b, int j) { u32 q = b[2 + (j & 15)]; return half_at(b) * (float)UNEVEN[j < 16 ? q & 15 : q >> 4]; } };
struct IQ4_XS {
  enum { COUNT = 256, BYTES = 136 };
  DI static float at(const u8* b, int j) {
    int g = j >> 5; u32 high = (u32)b[2] | (u32)b[3] << 8, q = b[8 + 16 * g + (j & 15)];
    float scale = (float)nibble(b + 4, g) + 16.f * (float)(high >> (2 * g) & 3) - 32.f;
    return half_at(b) * scale * (float)UNEVEN[(j & 31) < 16 ? q & 15 : q >> 4];
  }
};
struct MXFP4 {
  enum { COUNT = 32, BYTES = 17 };
  DI static float at(const u8* b, int j) {
    u32 e = b[0], q = b[1 + (j & 15)];
    // Half of the power, because the numbers are doubled.
    float d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    return d * (2.f * e2m1(j < 16 ? q & 15 : q >> 4));
  }
};
struct GgmlNVFP4 {
  enum { COUNT = 64, BYTES = 36 };
  DI static float at(const u8* b, int j) {
    int g = j >> 4; u32 code = b[g] & 0x7f, q = b[4 + 8 * g + (j & 7)];
    float scale = code == 0x7f ? 0.f : e4m3(code) * 0.5f;
    return scale * (2.f * e2m1((j & 15) < 8 ? q & 15 : q >> 4));
  }
};
template <class B> struct Block { DI static float at(const u8* p, i64 i) { return B::at(p + i / B::COUNT * B::BYTES, (int)(i % B::COUNT)); } };

// Quantised rows: value of a column.
DI float row_scale(const u8* row, const Rows& r) { return float_at(row + r.code_bytes + r.group_bytes); }
struct RowE4M3 { DI static float at(const u8* row, int c, const Rows& r) { return e4m3(row[c]) * row_scale(row, r); } };
struct RowE5M2 { DI static float at(const u8* row, int c, const Rows& r) { return e5m2(row[c]) * row_scale(row, r); } };
struct RowInt8 { DI static float at(const u8* row, int c, const Rows& r) { return (float)(signed char)row[c] * row_scale(row, r); } };
struct RowInt4 { DI static float at(const u8* row, int c, const Rows& r) { return (float)((int)(nibble(row, c) << 28) >> 28) * row_scale(row, r); } };
struct RowNVFP4 { DI static float at(const u8* row, int c, const Rows& r) { return e2m1(nibble(row, c ^ 1)) * (row_scale(row, r) * e4m3(row[r.code_bytes + c / 16])); } };
struct RowMXFP8 { DI static float at(const u8* row, int c, const Rows& r) { return e4m3(row[c]) * __uint_as_float((u32)row[r.code_bytes + c / 32] << 23); } };
__device__ const float USUAL_LEVELS[16] = { -0.980602f, -0.794529f, -0.638165f, -0.500986f, -0.377321f, -0.263187f, -0.15521f, -0.05072f,
                                            0.052541f, 0.156985f, 0.265284f, 0.379533f, 0.502636f, 0.638953f, 0.794876f, 0.980671f };
// levels: 0 even, 1 usual, 2 a table in the row. number: bytes of the scale of a group, 4 for f32 and 1 for E4M3.
struct RowGrid {
  // The whole number that the code of a column stands for.
  DI static float level(const u8* row, int c, const Rows& r) {
    const u8* rest = row + r.code_bytes;
    u32 code = nibble(row, c);
    if (r.bits == 6) code |= (row[r.columns / 2 + c / 4] >> (c % 4 * 2) & 3) << 4;
    int g = c / r.group;
    float scale = r.number == 4 ? float_at(rest + 4 * g) : e4m3(rest[g]);
    float level = r.levels == 0 ? (float)code - (r.bits == 4 ? 8.f : 32.f) : r.levels == 1 ? USUAL_LEVELS[code & 15] : float_at(rest + r.group_bytes - 64 + (code & 15) * 4);
    return fminf(fmaxf(rintf(level * scale), -127.f), 127.f);
  }
  DI static float at(const u8* row, int c, const Rows& r) {
    float v = level(row, c, r) * row_scale(row, r);
    return r.corrected ? v + float_at(row + r.code_bytes + r.groups * r.number + 4 * (c / r.group)) : v;
  }
};
// number: 0 f16, 1 bf16, 2 f32
struct RowAffine {
  DI static float number(const u8* p, int i, int kind) { return kind == 2 ? float_at(p + 4 * i) : kind == 1 ? bf16_to_float((u16)(p[2 * i] | p[2 * i + 1] << 8)) : half_at(p + 2 * i); }
  DI static float at(const u8* row, int c, const Rows& r) {
    const u8* rest = row + r.code_bytes; int g = c / r.group;
    return ((float)nibble(row, c) - 8.f) * number(rest, g, r.number) + number(rest, r.groups + g, r.number);
  }
};

// `value(o, channel, tap)` for the elements from `first` on of (out, all_taps, padded), two channels per thread.
template <class Value> DI void write_all(S* to, int out, int channels, int taps, int padded, int all_taps, int first, Value value) {
  struct alignas(2 * sizeof(S)) Pair { S a, b; };
  u32 pairs = (padded + 1) / 2, count = (u32)out * taps * pairs, step = gridDim.x * blockDim.x;
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    u32 row = i / pairs, c = (i - row * pairs) * 2, o = row / taps;
    int tap = (int)(row - o * taps);
    S* line = to + ((i64)o * all_taps + first + tap) * padded + c;
    S a = (int)c < channels ? TY::store(value((i64)o, (int)c, tap)) : (S)0;
    S b = (int)c + 1 < channels ? TY::store(value((i64)o, (int)c + 1, tap)) : (S)0;
    if (padded % 2 == 0) *(Pair*)line = Pair{a, b};
    else { line[0] = a; if ((int)c + 1 < padded) line[1] = b; }
  }
}
// taps_first: the elements lie as (out, position, channel) already.
#define PLAIN(name, Format) extern "C" __global__ void __launch_bounds__(256) name(const u8* from, S* to, int out, int channels, int taps, int padded, int all_taps, int first, int taps_first) { after_others(); \
  write_all(to, out, channels, taps, padded, all_taps, first, [=](i64 o, int c, int tap) { return Format::at(from, taps_first ? (o * taps + tap) * channels + c : (o * channels + c) * taps + tap); }); \
}
#define ROWS(name, Format) extern "C" __global__ void __launch_bounds__(256) name(const u8* from, S* to, int out, int channels, int taps, int padded, int all_taps, int first, \
    int row_bytes, int code_bytes, int group_bytes, int groups, int group, int bits, int levels, int corrected, int number) { after_others(); \
  const Rows rows = { channels * taps, row_bytes, code_bytes, group_bytes, groups, group, bits, levels, corrected, number }; \
  write_all(to, out, channels, taps, padded, all_taps, first, [=](i64 o, int c, int tap) { return Format::at(from + o * row_bytes, c * taps + tap, rows); }); \
}
// Rows of bytes whose scales stand behind all of them: see relayout.cu.
#define APART(name, Format) extern "C" __global__ void __launch_bounds__(256) name(const u8* from, S* to, int out, int channels, int taps, int padded, int all_taps, int first) { after_others(); \
  const i64 columns = (i64)channels * taps; \
  const float* scales = (const float*)(from + columns * out); \
  write_all(to, out, channels, taps, padded, all_taps, first, [=](i64 o, int c, int tap) { return Format::at(from, o * columns + c * taps + tap) * scales[o]; }); \
}
struct PlainInt8 { DI static float at(const u8* p, i64 i) { return (float)(signed char)p[i]; } };
APART(from_apart_e4m3, PlainE4M3)
APART(from_apart_e5m2, PlainE5M2)
APART(from_apart_int8, PlainInt8)

// The bytes that the codes of quantised rows stand for before the scale of their row, (out, columns), and those scales; four columns per thread.
template <class Level> DI void write_levels(const u8* from, u8* to, float* scales, int out, const Rows& r, Level level) {
  const int fours = r.columns / 4;
  const i64 count = (i64)out * fours, step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const i64 o = i / fours;
    const int c = (int)(i - o * fours) * 4;
    const u8* row = from + o * r.row_bytes;
    u32 word = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) word |= ((u32)(int)level(row, c + e) & 255u) << (8 * e);
    ((u32*)to)[i] = word;
    if (c == 0) scales[o] = row_scale(row, r);
  }
}
#define LEVELS(name, ...) extern "C" __global__ void __launch_bounds__(256) name(const u8* from, u8* to, float* scales, int out, int columns, \
    int row_bytes, int code_bytes, int group_bytes, int groups, int group, int bits, int levels, int corrected, int number) { after_others(); \
  const Rows rows = { columns, row_bytes, code_bytes, group_bytes, groups, group, bits, levels, corrected, number }; \
  write_levels(from, to, scales, out, rows, [=](const u8* row, int c) { return __VA_ARGS__; }); \
}
LEVELS(levels_int4, (float)((int)(nibble(row, c) << 28) >> 28))
LEVELS(levels_grid, RowGrid::level(row, c, rows))
PLAIN(from_f32, PlainF32)
PLAIN(from_f16, PlainF16)
PLAIN(from_bf16, PlainBF16)
PLAIN(from_e4m3, PlainE4M3)
PLAIN(from_e5m2, PlainE5M2)
PLAIN(from_q8_0, Block<Q8_0>)
PLAIN(from_q4_0, Block<Q4_0>)
PLAIN(from_q4_1, Block<Q4_1>)
PLAIN(from_q5_0, Block<Q5_0>)
PLAIN(from_q5_1, Block<Q5_1>)
PLAIN(from_q2_k, Block<Q2_K>)
PLAIN(from_q3_k, Block<Q3_K>)
PLAIN(from_q4_k, Block<Q4_K>)
PLAIN(from_q5_k, Block<Q5_K>)
PLAIN(from_q6_k, Block<Q6_K>)
PLAIN(from_q8_k, Block<Q8_K>)
PLAIN(from_tq1_0, Block<TQ1_0>)
PLAIN(from_tq2_0, Block<TQ2_0>)
PLAIN(from_iq4_nl, Block<IQ4_NL>)
PLAIN(from_iq4_xs, Block<IQ4_XS>)
PLAIN(from_mxfp4, Block<MXFP4>)
PLAIN(from_ggml_nvfp4, Block<GgmlNVFP4>)
ROWS(from_rows_e4m3, RowE4M3)
ROWS(from_rows_e5m2, RowE5M2)
ROWS(from_rows_int8, RowInt8)
ROWS(from_rows_int4, RowInt4)
ROWS(from_rows_nvfp4, RowNVFP4)
ROWS(from_rows_mxfp8, RowMXFP8)
ROWS(from_rows_grid, RowGrid)
ROWS(from_rows_affine, RowAffine)

// Inputs of a layer with what belongs to them: channels padded with zeros, times a scale per channel (or none), as if enlarged by repeating pixels.
// (count, in_height, in_width, channels) to (count, height, width, padded); one thread per element.
extern "C" __global__ void __launch_bounds__(256) prepare(const S* from, S* to, const float* scale, int channels, int padded, int in_height, int in_width, int height, int width, i64 count) {
  after_others();
  i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    int c = (int)(i % padded);
    i64 pixel = i / padded;
    if (height != in_height || width != in_width) {
      int x = (int)(pixel % width), y = (int)(pixel / width % height);
      pixel = (pixel / width / height * in_height + (i64)y * in_height / height) * in_width + (i64)x * in_width / width;
    }
    S v = (S)0;
    if (c < channels) v = from[pixel * channels + c];
    to[i] = scale && c < channels ? TY::store(TY::load(v) * scale[c]) : v;
  }
}
// What small kernels see of pictures of up to 8 channels, position by position, with zeros for what is not there: (count, in_height, in_width, channels) to
// (count, height, width, kernel_height * kernel_width, 8). One thread per position; `all` of them.
extern "C" __global__ void __launch_bounds__(256) gather(const S* from, S* to, int channels, int in_height, int in_width, int height, int width, int kernel_height, int kernel_width, int stride, int above, int left, int all) {
  after_others();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= all) return;
  int taps = kernel_height * kernel_width, pixel = i / taps, tap = i - pixel * taps, ky = tap / kernel_width;
  int line = pixel / width, item = line / height;
  int x = (pixel - line * width) * stride + (tap - ky * kernel_width) - left, y = (line - item * height) * stride + ky - above;
  bool is = x >= 0 && x < in_width && y >= 0 && y < in_height;
  const S* source = from + (((i64)item * in_height + y) * in_width + x) * channels;
#pragma unroll
  for (int c = 0; c < 8; c++) to[(i64)i * 8 + c] = is && c < channels ? source[c] : (S)0;
}
// The same for enlarging alone, 16 bytes per thread: `chunks` of them are a pixel.
extern "C" __global__ void __launch_bounds__(256) enlarge(const uint4* from, uint4* to, int chunks, int in_height, int in_width, int height, int width, i64 count) {
  after_others();
  i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    i64 pixel = i / chunks;
    int x = (int)(pixel % width), y = (int)(pixel / width % height);
    pixel = (pixel / width / height * in_height + (i64)y * in_height / height) * in_width + (i64)x * in_width / width;
    to[i] = from[pixel * chunks + i % chunks];
  }
}
// Rotates groups of columns by the matrix of formats/rotation.rs: one block of up to 1024 threads walks over groups; a group is at most 4096 columns.
extern "C" __global__ void __launch_bounds__(1024) rotate(const S* from, S* to, int group, i64 groups) {
  after_others();
  __shared__ float v[4096];
  for (i64 g = blockIdx.x; g < groups; g += gridDim.x) {
    for (int i = threadIdx.x; i < group; i += blockDim.x) v[i] = TY::load(from[g * group + i]);
    __syncthreads();
    for (int s = 1; s < group; s *= 4) {
      for (int i = threadIdx.x; i < group / 4; i += blockDim.x) {
        int first = i / s * 4 * s + i % s;
        float a = v[first], b = v[first + s], c = v[first + 2 * s], d = v[first + 3 * s], half = 0.5f * ((a + b) + (c + d));
        v[first] = half - d; v[first + s] = half - c; v[first + 2 * s] = half - b; v[first + 3 * s] = half - a;
      }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < group; i += blockDim.x) to[g * group + i] = TY::store(v[i]);
    __syncthreads();
  }
}
// Rounds rows to whole numbers of up to `levels` times a scale of the row, as cpu/integer.rs does; the numbers stay in place of what they stand for. One block per row.
extern "C" __global__ void __launch_bounds__(256) round_rows(const S* from, S* to, int columns, float levels, i64 rows) {
  after_others();
  __shared__ u32 parts[8];
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const S* line = from + row * columns;
    // Magnitudes compare like their bits, and what is no number is above them all.
    u32 most = 0;
    for (int i = threadIdx.x; i < columns; i += 256) most = max(most, __float_as_uint(TY::load(line[i])) & 0x7fffffffu);
    for (int m = 16; m; m >>= 1) most = max(most, shx(most, m));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++) most = max(most, parts[i]);
    __syncthreads();
    float scale = most >= 0x7f800000u ? __uint_as_float(0x7fc00000u)
                : levels < 127.f ? fmaxf(__uint_as_float(most), 1e-10f) / levels : fmaxf(__uint_as_float(most) / levels, 1e-30f);
    for (int i = threadIdx.x; i < columns; i += 256) to[row * columns + i] = TY::store(rintf(TY::load(line[i]) / scale) * scale);
  }
}
// The 3x3 kernels of a convolution over a picture enlarged to twice its size, as four 2x2 kernels over the picture itself, one for each of the four results
// over a pixel: (out, 9, channels) to (4, out, 4, channels). Pixels that are equal have the sum of their weights. A thread makes one of the four for 16 bytes of channels.
template <int PHASE> DI void halve(const S* from, S* to, int out, int channels) {
  constexpr int PACK = 16 / sizeof(S), py = PHASE / 2, px = PHASE % 2;
  union Words { uint4 words; S s[PACK]; };
  u32 packs = channels / PACK, i = blockIdx.x * blockDim.x + threadIdx.x, o = i / packs, p = i - o * packs;
  if (o >= out) return;
  const uint4* kernel = (const uint4*)(from + (i64)o * 9 * channels) + p;
  Words w[9];
#pragma unroll
  for (int tap = 0; tap < 9; tap++) w[tap].words = kernel[tap * packs];
#pragma unroll
  for (int tap = 0; tap < 4; tap++) {
    // Phase 0 sees the first row, then the sum of the others; phase 1 the sum of the first two, then the last. The same for columns.
    const int ty = tap / 2, tx = tap % 2;
    const int y0 = ty ? 1 + py : 0, y1 = ty ? 3 : 1 + py, x0 = tx ? 1 + px : 0, x1 = tx ? 3 : 1 + px;
    Words v;
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      float sum = 0.f;
#pragma unroll
      for (int y = 0; y < 3; y++)
#pragma unroll
        for (int x = 0; x < 3; x++) if (y >= y0 && y < y1 && x >= x0 && x < x1) sum += TY::load(w[3 * y + x].s[e]);
      v.s[e] = TY::store(sum);
    }
    ((uint4*)(to + (((i64)PHASE * out + o) * 4 + tap) * channels))[p] = v.words;
  }
}
extern "C" __global__ void __launch_bounds__(256) halve_kernels(const S* from, S* to, int out, int channels) {
  after_others();
  switch (blockIdx.y) {
    case 0: return halve<0>(from, to, out, channels);
    case 1: return halve<1>(from, to, out, channels);
    case 2: return halve<2>(from, to, out, channels);
    default: return halve<3>(from, to, out, channels);
  }
}
