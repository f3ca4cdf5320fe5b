// Products and convolutions with mma.sync (8.0 and later), f16 and bf16: out = gate * act(A W^T + bias + per_item) + residual.
//
// A is (frames, height, width, channels), W is (N, taps, channels); channels are a multiple of 8, all else is free: any kernel, stride and padding,
// pictures read as if enlarged by repeating pixels. A matrix is a picture of one row of M pixels.
// Tile 128 x BN x 32, warps of 64 x 64, cp.async stages (BN 128: 48 KiB, two blocks per multiprocessor; BN 256: 96 KiB, one).
// With -DOPERAND=S8 both operands are signed bytes with scales for rows and columns, for matrices alone: two bytes are one channel to all that copies.
// With E4M3 and E5M2 inputs are E4M3, and weights of that name (8.9 and later).
// The tiles from `full_tiles` on are cut in `parts` along K as in product_hopper.cu.
#include "finish.cuh"

struct Halves { typedef float Sum; DI static void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { TY::mma(c, a, b0, b1); } };
// The bytes of a fragment lie where the halves of twice the size would.
struct S8 {
  typedef int Sum;
  DI static void mma(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};
#if __CUDA_ARCH__ >= 890
#define FLOAT8(name, weights) struct name { \
  typedef float Sum; \
  DI static void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3." weights ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
  } \
};
FLOAT8(E4M3, "e4m3")
FLOAT8(E5M2, "e5m2")
#endif
#ifdef OPERAND
constexpr bool BYTES = true;
#else
#define OPERAND Halves
constexpr bool BYTES = false;
#endif

// Sizes of the input, those it is enlarged to, of the output, of the kernel, and how they meet.
struct Window {
  int frames, in_height, in_width, channels;
  int large_height, large_width;
  int out_height, out_width;
  int time, height, width;
  int time_stride, stride;
  int time_before, above, left;
};

template <class T, class E, int BN, int ST, int GEGLU>
DI void product(const u16* A, const u16* Wt, const After<u16>& after, const Scales& by, int M, int N, const Window& w, int full_tiles, int parts, float* sums) {
  constexpr int BM = 128, BK = 32, AB = BM * BK * 2, SB = AB + BN * BK * 2, TH = BN, RPI = TH / 4, NA = BM / RPI, NB = BN / RPI, GROUP = 8;
  extern __shared__ unsigned char raw[];
  u32 base = smem_u32(raw);
  int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, wm = warp & 1, wn = warp >> 1;
  int C = w.channels, K = w.time * w.height * w.width * C;
  int mt = (M + BM - 1) / BM, nt = (N + BN - 1) / BN, kt = (K + BK - 1) / BK;
  int nfull = min(mt * nt, full_tiles), u = blockIdx.x, ks = 0, np = 1;
  if (u >= nfull) { int v = u - nfull; u = nfull + v / parts; ks = v % parts; np = parts; }
  int kb0 = (int)((i64)ks * kt / np), kb1 = (int)((i64)(ks + 1) * kt / np);
  int mi, ni;
  tile_place(u, mt, nt, GROUP, mi, ni);
  int lr = tid >> 2, lc = tid & 3;
  u32 so = lr * 64 + ((lc ^ ((lr >> 1) & 3)) << 4);   // rows step by a multiple of 8, so the swizzle stays

  // Each thread copies eight channels of one tap at a time: where it stands along K.
  int kpos = kb0 * BK + lc * 8;
  int tap = kpos / C, c = kpos - tap * C;
  u32 pixel[NA], aok = 0;
  // The pixels that the rows see at this tap. Taps change rarely, so what they need is worked out anew each time.
  auto see = [&]() {
    int plane = w.height * w.width, kz = tap / plane, in = tap - kz * plane, ky = in / w.width, kx = in - ky * w.width;
    aok = 0;
#pragma unroll
    for (int i = 0; i < NA; i++) {
      int m = mi * BM + lr + RPI * i;
      int line = m / w.out_width, ox = m - line * w.out_width, oz = line / w.out_height, oy = line - oz * w.out_height;
      int z = oz * w.time_stride + kz - w.time_before, y = oy * w.stride + ky - w.above, x = ox * w.stride + kx - w.left;
      bool ok = m < M && (u32)z < (u32)w.frames && (u32)y < (u32)w.large_height && (u32)x < (u32)w.large_width;
      if (w.large_height != w.in_height) y = (int)((i64)y * w.in_height / w.large_height);
      if (w.large_width != w.in_width) x = (int)((i64)x * w.in_width / w.large_width);
      pixel[i] = ((u32)z * w.in_height + y) * w.in_width + x;
      if (ok) aok |= 1u << i;
    }
  };
  see();
  u32 bok = 0;
  // With GEGLU rows of values and gates take turns by eight.
  int wrow = GEGLU ? ni * (BN / 2) + (lr >> 4) * 8 + (lr & 7) : ni * BN + lr;
  constexpr int WSTEP = GEGLU ? RPI / 2 : RPI;
#pragma unroll
  for (int i = 0; i < NB; i++) if (wrow + WSTEP * i < (GEGLU ? N / 2 : N)) bok |= 1u << i;
  const u16* bp = Wt + (i64)(wrow + (GEGLU && ((lr >> 3) & 1) ? N / 2 : 0)) * K;
  i64 bstep = (i64)WSTEP * K;
  auto load = [&](int s) {
    u32 d = base + s * SB + so;
    bool kok = kpos < K;
#pragma unroll
    for (int i = 0; i < NA; i++) { bool ok = kok && (aok >> i & 1); cp16(d + i * RPI * 64, ok ? A + (u64)pixel[i] * C + c : A, ok ? 16 : 0); }
#pragma unroll
    for (int i = 0; i < NB; i++) { bool ok = kok && (bok >> i & 1); cp16(d + AB + i * RPI * 64, ok ? bp + i * bstep + kpos : Wt, ok ? 16 : 0); }
    kpos += BK; c += BK;
    if (c >= C) { do { c -= C; tap++; } while (c >= C); see(); }
  };
  typename E::Sum acc[4][8][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) acc[i][j][e] = 0;
#pragma unroll 1
  for (int s = 0; s < ST - 1; s++) { if (kb0 + s < kb1) load(s); cp_commit(); }
  int ar = wm * 64 + (lane & 15), ac = lane >> 4;
  int br = wn * 64 + (lane & 7) + ((lane >> 4) << 3), bc = (lane >> 3) & 1;
  u32 fa[2][4][4], fb[2][4][4];   // fragments of two K steps of 16: the next ones load under the products of these
  auto frag = [&](int stage, int kk, int f) {
    u32 sa = base + stage * SB, sb = sa + AB;
#pragma unroll
    for (int i = 0; i < 4; i++) { int r = ar + 16 * i; ldsm4(fa[f][i], sa + r * 64 + (((2 * kk + ac) ^ ((r >> 1) & 3)) << 4)); }
#pragma unroll
    for (int j = 0; j < 4; j++) { int r = br + 16 * j; ldsm4(fb[f][j], sb + r * 64 + (((2 * kk + bc) ^ ((r >> 1) & 3)) << 4)); }
  };
  auto multiply = [&](int f) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) { E::mma(acc[i][2 * j], fa[f][i], fb[f][j][0], fb[f][j][1]); E::mma(acc[i][2 * j + 1], fa[f][i], fb[f][j][2], fb[f][j][3]); }
  };
  cp_wait<ST - 2>();
  __syncthreads();
  frag(0, 0, 0);
  int stage = 0, ahead = ST - 1;
  for (int kb = kb0; kb < kb1; kb++) {
    frag(stage, 1, 1);
    if (kb + ST - 1 < kb1) load(ahead);   // overwrites the stage of kb - 1, which every warp has left
    if (++ahead == ST) ahead = 0;
    cp_commit();
    multiply(0);
    cp_wait<ST - 2>();
    __syncthreads();
    if (++stage == ST) stage = 0;
    if (kb + 1 < kb1) frag(stage, 0, 0);
    multiply(1);
  }
  int q = lane & 3;
  if (blockIdx.x >= nfull) {
    float* to = sums + ((i64)(u - nfull) * parts + ks) * BM * BN;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float* line = to + (wm * 64 + 16 * i + 8 * h + (lane >> 2)) * BN + 2 * q;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          int p = GEGLU ? (j & 1) * (BN / 2) + wn * 32 + (j >> 1) * 8 : wn * 64 + j * 8;
          *(float2*)(line + p) = make_float2((float)acc[i][j][2 * h], (float)acc[i][j][2 * h + 1]);
        }
      }
    return;
  }
  // Each warp lays its sums into shared memory of its own, 32 rows at a time, and takes whole rows from there: what follows a product is in the code
  // twice and not sixteen times. All stages have been read by now.
  constexpr int PITCH = 72, OWN = GEGLU ? 32 : 64, CHUNKS = OWN / 8;
  float* own = (float*)raw + warp * 32 * PITCH;
  int n = GEGLU ? N / 2 : N, c0 = GEGLU ? ni * (BN / 2) + wn * 32 : ni * BN + wn * 64;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
          int p = GEGLU ? (j & 1) * 32 + (j >> 1) * 8 : j * 8;
          *(float2*)(own + (16 * i + 8 * h + (lane >> 2)) * PITCH + p + 2 * q) = make_float2((float)acc[2 * half + i][j][2 * h], (float)acc[2 * half + i][j][2 * h + 1]);
        }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 32 * CHUNKS; i += 32) {
      int r = i / CHUNKS, p = i % CHUNKS * 8, col = c0 + p;
      i64 row = (i64)mi * BM + wm * 64 + 32 * half + r;
      if (row >= M || col >= n) continue;
      float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      add4(x, own + r * PITCH + p); add4(x + 4, own + r * PITCH + p + 4);
      if (BYTES) scale8(by, x, row, col, n);
      if (GEGLU) {
        float g[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add4(g, own + r * PITCH + 32 + p); add4(g + 4, own + r * PITCH + 32 + p + 4);
        if (BYTES) { Scales gates = { by.row, by.column + n }; scale8(gates, g, row, col, n); }
        finish8_geglu<T>(after, x, g, row, col, n);
      } else finish8<T>(after, x, row, col, n);
    }
  }
}

#define KERNEL(name, BN, ST, BLOCKS, GEGLU) extern "C" __global__ void __launch_bounds__(BN, BLOCKS) name(const u16* A, const u16* Wt, AFTER_PARAMETERS(u16), int M, int N, \
    int frames, int in_height, int in_width, int channels, int large_height, int large_width, int out_height, int out_width, int time, int height, int width, \
    int time_stride, int stride, int time_before, int above, int left, int full_tiles, int parts, float* sums, SCALES_PARAMETERS) { after_others(); \
  const Scales by = { row_scale, column_scale }; \
  const After<u16> after = AFTER_VALUES; \
  const Window window = { frames, in_height, in_width, channels, large_height, large_width, out_height, out_width, time, height, width, time_stride, stride, time_before, above, left }; \
  product<TY, OPERAND, BN, ST, GEGLU>(A, Wt, after, by, M, N, window, full_tiles, parts, sums); \
}
KERNEL(product_128, 128, 3, 2, 0)
KERNEL(product_256, 256, 4, 1, 0)
KERNEL(geglu_128, 128, 3, 2, 1)
KERNEL(geglu_256, 256, 4, 1, 1)
