// Attention without a score matrix for compute capability 9.0: one warp group feeds, NW warp groups of 64 queries each compute.
//
// Tensors are (batch, tokens, heads, d). The bulk copy of queries knows `d`, the true size of a head, so it fills columns past it and rows past the
// last token with zeros: an instance for D columns serves every multiple of 8 up to D. Keys and values bring the first columns of the next head along,
// which meet those zeros, or are not looked at: copies that end within a row take four times as long. The scores of the next tile of keys are asked for
// before this tile's P V, so its softmax runs under that product.
//
// NVRTC defines for a build: TY = F16 or BF16.
#include "hopper.cuh"
#include "attention.cuh"

// D columns (a head has at most so many), KEYS per tile, NW warp groups, STAGES tiles of keys and values under way; TURNS: the warp groups
// take turns issuing products, so that one's softmax runs under another's products (15 % at 40 columns, 5 % at 64, nothing above).
template <class T, int D, int KEYS, int NW, int STAGES, bool TURNS>
DI void attention(const TMap& map_q, const TMap& map_k, const TMap& map_v, u16* out, int queries, int keys, int heads, int d, float scale) {
  constexpr int CHUNKS = (D + 63) / 64, STEPS = (D + 15) / 16, QUERIES = 64 * NW;
  constexpr int Q_BYTES = QUERIES * 128 * CHUNKS, K_BYTES = KEYS * 128 * CHUNKS, SCORES = KEYS / 2;
  extern __shared__ unsigned char raw[];
  u32 base = (smem_u32(raw) + 1023) & ~1023u;
  u32 sq = base, sk = sq + Q_BYTES, sv = sk + STAGES * K_BYTES, q_full = sv + STAGES * K_BYTES;
  u32 k_full = q_full + 8, k_empty = k_full + 8 * STAGES, v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
  int tid = threadIdx.x, group = tid >> 7;
  scale *= LOG2_E;   // powers of two from here on
  BlockPlace at = block_place(blockIdx.x, queries, QUERIES, heads);
  int first = at.tile * QUERIES;
  if (tid == 0) {
    mbar_init(q_full, 1);
    for (int i = 0; i < STAGES; i++) {
      mbar_init(k_full + 8 * i, 1);
      mbar_init(v_full + 8 * i, 1);
      mbar_init(k_empty + 8 * i, 4 * NW);
      mbar_init(v_empty + 8 * i, 4 * NW);
    }
    fence_init();
  }
  __syncthreads();
  after_others();
  int tiles = (keys + KEYS - 1) / KEYS;
  if (group == 0) {
    if (NW == 2) reg_dec<40>(); else if (NW == 3) reg_dec<32>(); else reg_dec<24>();
    if (tid == 0) {
      mbar_expect(q_full, Q_BYTES);
      for (int c = 0; c < CHUNKS; c++) tma4(sq + c * QUERIES * 128, map_q, q_full, c * 64, at.head, first, at.item);
      int s = 0;
      u32 phase = 1;
      for (int i = 0; i < tiles; i++) {
        mbar_wait(k_empty + 8 * s, phase);
        mbar_expect(k_full + 8 * s, K_BYTES);
        for (int c = 0; c < CHUNKS; c++) tma4(sk + s * K_BYTES + c * KEYS * 128, map_k, k_full + 8 * s, at.head * d + c * 64, 0, i * KEYS, at.item);
        mbar_wait(v_empty + 8 * s, phase);
        mbar_expect(v_full + 8 * s, K_BYTES);
        for (int c = 0; c < CHUNKS; c++) tma4(sv + s * K_BYTES + c * KEYS * 128, map_v, v_full + 8 * s, at.head * d + c * 64, 0, i * KEYS, at.item);
        if (++s == STAGES) { s = 0; phase ^= 1; }
      }
    }
  } else {
    if (NW == 2) reg_inc<232>(); else if (NW == 3) reg_inc<160>(); else reg_inc<112>();
    int mine = group - 1, lane = tid & 31, warp = (tid >> 5) & 3, q = lane & 3;
    // Rows of a thread: one and the one eight below; 0 and 1 stand for them.
    float o[D / 2], sc[SCORES], m0 = -1e30f, m1 = -1e30f, l0 = 0.f, l1 = 0.f;
    u32 p[SCORES / 2];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0.f;
    mbar_wait(q_full, 0);
    const u64 dq = sdesc(sq + mine * 64 * 128, 16, 1024), dk = sdesc(sk, 16, 1024), dv = sdesc(sv, KEYS * 128, 1024);
    auto scores = [&](int s) {
      u64 keys_at = dk + (u32)(s * (K_BYTES / 16));
#pragma unroll
      for (int k = 0; k < STEPS; k++)
        WG<T, KEYS>::ss(sc, dq + ((k / 4) * QUERIES * 128 + (k % 4) * 32) / 16, keys_at + ((k / 4) * KEYS * 128 + (k % 4) * 32) / 16, k != 0);
      wg_commit();
    };
    auto weigh_values = [&](int s) {
      u64 values_at = dv + (u32)(s * (K_BYTES / 16));
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++) WG<T, D>::rs_t(o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], values_at + k * 128, 1);
      wg_commit();
    };
    auto hide_past = [&](int limit) {
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
        int c = 8 * j + 2 * q;
        if (c >= limit) sc[4 * j] = sc[4 * j + 2] = -1e30f;
        if (c + 1 >= limit) sc[4 * j + 1] = sc[4 * j + 3] = -1e30f;
      }
    };
    float f0, f1;   // by what earlier sums shrink
    auto softmax = [&]() {
      float a0 = m0, a1 = m1;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
        a0 = fmaxf(a0, fmaxf(sc[4 * j], sc[4 * j + 1]));
        a1 = fmaxf(a1, fmaxf(sc[4 * j + 2], sc[4 * j + 3]));
      }
      a0 = fmaxf(a0, shxf(a0, 1)); a0 = fmaxf(a0, shxf(a0, 2));
      a1 = fmaxf(a1, shxf(a1, 1)); a1 = fmaxf(a1, shxf(a1, 2));
      f0 = ex2((m0 - a0) * scale); f1 = ex2((m1 - a1) * scale);
      float z0 = a0 * scale, z1 = a1 * scale, t0 = 0.f, t1 = 0.f;
      m0 = a0; m1 = a1;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
        sc[4 * j] = ex2(sc[4 * j] * scale - z0); sc[4 * j + 1] = ex2(sc[4 * j + 1] * scale - z0);
        sc[4 * j + 2] = ex2(sc[4 * j + 2] * scale - z1); sc[4 * j + 3] = ex2(sc[4 * j + 3] * scale - z1);
        t0 += sc[4 * j] + sc[4 * j + 1]; t1 += sc[4 * j + 2] + sc[4 * j + 3];
      }
      l0 = l0 * f0 + t0; l1 = l1 * f1 + t1;
    };
    auto pack = [&]() {
#pragma unroll
      for (int j = 0; j < SCORES / 2; j++) p[j] = T::pack(sc[2 * j], sc[2 * j + 1]);
    };
    // The first and the last tile stand outside of the loop: with a branch between the two products the compiler serialises all of them.
    int s = 0, before = 0;
    u32 phase = 0, phase_before = 0;
    mbar_wait(k_full, 0);
    wg_fence();
    scores(0);
    wg_wait<0>();
    if (lane == 0) mbar_arrive(k_empty);
    if (keys < KEYS) hide_past(keys);
    softmax();
    pack();
    if (TURNS && mine == NW - 1) bar_arrive(1, 256);
    for (int i = 1; i < tiles; i++) {
      before = s; phase_before = phase;
      if (++s == STAGES) { s = 0; phase ^= 1; }
      mbar_wait(k_full + 8 * s, phase);
      if (TURNS) bar_sync(1 + mine, 256);
      wg_fence();
      scores(s);
      mbar_wait(v_full + 8 * before, phase_before);
      wg_fence();   // the wait is a loop: the compiler would put one here
      weigh_values(before);
      if (TURNS) bar_arrive(1 + (mine + 1 == NW ? 0 : mine + 1), 256);
      wg_wait<1>();
      if (lane == 0) mbar_arrive(k_empty + 8 * s);
      int limit = keys - i * KEYS;
      if (limit < KEYS) hide_past(limit);
      softmax();
      wg_wait<0>();
      if (lane == 0) mbar_arrive(v_empty + 8 * before);
      pack();
#pragma unroll
      for (int j = 0; j < D / 8; j++) { o[4 * j] *= f0; o[4 * j + 1] *= f0; o[4 * j + 2] *= f1; o[4 * j + 3] *= f1; }
    }
    mbar_wait(v_full + 8 * s, phase);
    wg_fence();
    weigh_values(s);
    wg_wait<0>();
    l0 += shxf(l0, 1); l0 += shxf(l0, 2); l1 += shxf(l1, 1); l1 += shxf(l1, 2);
    float r0 = 1.f / l0, r1 = 1.f / l1;
    int row = first + mine * 64 + warp * 16 + (lane >> 2);
    u16* o0 = out + (((i64)at.item * queries + row) * heads + at.head) * d + 2 * q;
    u16* o1 = o0 + (i64)8 * heads * d;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      if (8 * j < d) {
        if (row < queries) *(u32*)(o0 + 8 * j) = T::pack(o[4 * j] * r0, o[4 * j + 1] * r0);
        if (row + 8 < queries) *(u32*)(o1 + 8 * j) = T::pack(o[4 * j + 2] * r1, o[4 * j + 3] * r1);
      }
    }
  }
}

// Heads of up to 512 (the middle of a VAE): 64 queries per block, two computing warp groups. Each computes the scores of half of the 64
// keys of a tile, exchanges row maxima through shared memory, writes its half of P there, and sums up 256 of the 512 columns.
template <class T>
DI void attention_wide(const TMap& map_q, const TMap& map_k, const TMap& map_v, u16* out, int queries, int keys, int heads, int d, float scale) {
  constexpr int CHUNKS = 8, TILE = 64 * 128 * CHUNKS;   // 64 KiB for 64 rows
  extern __shared__ unsigned char raw[];
  u32 base = (smem_u32(raw) + 1023) & ~1023u;
  unsigned char* generic = raw + (base - smem_u32(raw));
  u32 sq = base, sk = sq + TILE, sv = sk + TILE, sp = sv + TILE;
  float* exchange = (float*)(generic + 3 * TILE + 8192);   // [2][64]
  u32 q_full = sp + 8192 + 512, k_full = q_full + 8, k_empty = k_full + 8, v_full = k_empty + 8, v_empty = v_full + 8;
  int tid = threadIdx.x, group = tid >> 7;
  scale *= LOG2_E;   // powers of two from here on
  BlockPlace at = block_place(blockIdx.x, queries, 64, heads);
  int first = at.tile * 64;
  if (tid == 0) {
    mbar_init(q_full, 1);
    mbar_init(k_full, 1);
    mbar_init(v_full, 1);
    mbar_init(k_empty, 8);
    mbar_init(v_empty, 8);
    fence_init();
  }
  __syncthreads();
  after_others();
  int tiles = (keys + 63) / 64;
  if (group == 0) {
    reg_dec<40>();
    if (tid == 0) {
      mbar_expect(q_full, TILE);
      for (int c = 0; c < CHUNKS; c++) tma4(sq + c * 8192, map_q, q_full, c * 64, at.head, first, at.item);
      u32 phase = 1;
      for (int i = 0; i < tiles; i++, phase ^= 1) {
        mbar_wait(k_empty, phase);
        mbar_expect(k_full, TILE);
        for (int c = 0; c < CHUNKS; c++) tma4(sk + c * 8192, map_k, k_full, at.head * d + c * 64, 0, i * 64, at.item);
        mbar_wait(v_empty, phase);
        mbar_expect(v_full, TILE);
        for (int c = 0; c < CHUNKS; c++) tma4(sv + c * 8192, map_v, v_full, at.head * d + c * 64, 0, i * 64, at.item);
      }
    }
  } else {
    reg_inc<232>();
    int mine = group - 1, lane = tid & 31, warp = (tid >> 5) & 3, q = lane & 3, r = warp * 16 + (lane >> 2);
    float o[128], sc[16], m0 = -1e30f, m1 = -1e30f, l0 = 0.f, l1 = 0.f;
#pragma unroll
    for (int i = 0; i < 128; i++) o[i] = 0.f;
    mbar_wait(q_full, 0);
    u32 phase = 0;
    for (int i = 0; i < tiles; i++, phase ^= 1) {
      mbar_wait(k_full, phase);
      wg_fence();
#pragma unroll
      for (int k = 0; k < 32; k++)
        WG<T, 32>::ss(sc, sdesc(sq + (k / 4) * 8192 + (k % 4) * 32, 16, 1024), sdesc(sk + (k / 4) * 8192 + mine * 4096 + (k % 4) * 32, 16, 1024), k != 0);
      wg_commit();
      wg_wait<0>();
      if (lane == 0) mbar_arrive(k_empty);
      int limit = keys - i * 64 - mine * 32;
      if (limit < 32) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          int c = 8 * j + 2 * q;
          if (c >= limit) sc[4 * j] = sc[4 * j + 2] = -1e30f;
          if (c + 1 >= limit) sc[4 * j + 1] = sc[4 * j + 3] = -1e30f;
        }
      }
      float a0 = -1e30f, a1 = -1e30f;
#pragma unroll
      for (int j = 0; j < 4; j++) { a0 = fmaxf(a0, fmaxf(sc[4 * j], sc[4 * j + 1])); a1 = fmaxf(a1, fmaxf(sc[4 * j + 2], sc[4 * j + 3])); }
      a0 = fmaxf(a0, shxf(a0, 1)); a0 = fmaxf(a0, shxf(a0, 2));
      a1 = fmaxf(a1, shxf(a1, 1)); a1 = fmaxf(a1, shxf(a1, 2));
      if (q == 0) { exchange[mine * 64 + r] = a0; exchange[mine * 64 + r + 8] = a1; }
      bar_sync(1, 256);
      a0 = fmaxf(m0, fmaxf(a0, exchange[(mine ^ 1) * 64 + r])); a1 = fmaxf(m1, fmaxf(a1, exchange[(mine ^ 1) * 64 + r + 8]));
      float f0 = ex2((m0 - a0) * scale), f1 = ex2((m1 - a1) * scale), z0 = a0 * scale, z1 = a1 * scale, t0 = 0.f, t1 = 0.f;
      m0 = a0; m1 = a1;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float x0 = ex2(sc[4 * j] * scale - z0), x1 = ex2(sc[4 * j + 1] * scale - z0), y0 = ex2(sc[4 * j + 2] * scale - z1), y1 = ex2(sc[4 * j + 3] * scale - z1);
        t0 += x0 + x1; t1 += y0 + y1;
        u32 c = mine * 4 + j, place = sp + r * 128 + ((c ^ (r & 7)) << 4) + q * 4;   // the 128-byte swizzle by hand; row r + 8 has the same phase
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(place), "r"(T::pack(x0, x1)) : "memory");
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(place + 1024), "r"(T::pack(y0, y1)) : "memory");
      }
      l0 = l0 * f0 + t0; l1 = l1 * f1 + t1;
#pragma unroll
      for (int j = 0; j < 32; j++) { o[4 * j] *= f0; o[4 * j + 1] *= f0; o[4 * j + 2] *= f1; o[4 * j + 3] *= f1; }
      // P was written by ordinary stores and is read by the tensor cores.
      fence_async();
      bar_sync(1, 256);
      mbar_wait(v_full, phase);
      wg_fence();
#pragma unroll
      for (int k = 0; k < 4; k++) WG<T, 256>::ss_t(o, sdesc(sp + k * 32, 16, 1024), sdesc(sv + mine * 4 * 8192 + k * 2048, 8192, 1024), 1);
      wg_commit();
      wg_wait<0>();
      if (lane == 0) mbar_arrive(v_empty);
      // No barrier: the next maxima are written before the next bar_sync, which is after everyone's reads of these; and P is written
      // again only after that bar_sync, which every warp reaches when its product of P is done.
    }
    l0 += shxf(l0, 1); l0 += shxf(l0, 2); l1 += shxf(l1, 1); l1 += shxf(l1, 2);
    bar_sync(1, 256);
    if (q == 0) { exchange[mine * 64 + r] = l0; exchange[mine * 64 + r + 8] = l1; }
    bar_sync(1, 256);
    l0 += exchange[(mine ^ 1) * 64 + r]; l1 += exchange[(mine ^ 1) * 64 + r + 8];
    float r0 = 1.f / l0, r1 = 1.f / l1;
    int row = first + r;
    u16* o0 = out + (((i64)at.item * queries + row) * heads + at.head) * d + mine * 256 + 2 * q;
    u16* o1 = o0 + (i64)8 * heads * d;
#pragma unroll
    for (int j = 0; j < 32; j++) {
      if (mine * 256 + 8 * j < d) {
        if (row < queries) *(u32*)(o0 + 8 * j) = T::pack(o[4 * j] * r0, o[4 * j + 1] * r0);
        if (row + 8 < queries) *(u32*)(o1 + 8 * j) = T::pack(o[4 * j + 2] * r1, o[4 * j + 3] * r1);
      }
    }
  }
}

#define PARAMETERS const __grid_constant__ TMap map_q, const __grid_constant__ TMap map_k, const __grid_constant__ TMap map_v, u16 *out, int queries, int keys, int heads, int d, float scale
#define KERNEL(name, D, KEYS, NW, TURNS) \
  extern "C" __global__ void __launch_bounds__(128 * (NW + 1), 1) name(PARAMETERS) { attention<TY, D, KEYS, NW, 2, TURNS>(map_q, map_k, map_v, out, queries, keys, heads, d, scale); }
// The sizes are known to cuda/ops/attention.rs.
KERNEL(attention_40, 40, 128, 3, true)
KERNEL(attention_40_of_4, 40, 80, 4, true)
KERNEL(attention_64, 64, 128, 3, true)
KERNEL(attention_80, 80, 128, 2, true)
KERNEL(attention_80_of_3, 80, 96, 3, true)
KERNEL(attention_128, 128, 128, 2, false)
KERNEL(attention_160, 160, 64, 2, false)
KERNEL(attention_256, 256, 64, 2, false)
extern "C" __global__ void __launch_bounds__(384, 1) attention_512(PARAMETERS) { attention_wide<TY>(map_q, map_k, map_v, out, queries, keys, heads, d, scale); }
