// Many tiles of products and convolutions on Hopper, f16 and bf16: out = A W^T + bias + per_item + residual, or the two halves of it as value * gelu(gate).
//
// One block = one warp group that copies and two that make tiles of 128 x BN by turns: while one computes, the other finishes its own. Results go
// through shared memory in sixteen bits, from where bulk copies take them, as they bring residuals there. See product_hopper.cu for all else: tiles with an
// activation or a gate, those of several items and those of four phases are made there.
#include "product_feed.cuh"

// A tile of results as bulk copies see it: pieces of WIDE columns, swizzled by their own width, so that the rows of a matrix of 8 x 8 never meet in a bank.
template <int OUT> struct Results {
  static constexpr int WIDE = OUT % 32 == 0 ? 32 : 16, PIECES = OUT / WIDE, PIECE = 128 * WIDE * 2, BYTES = OUT * 256;
  DI static u32 place(int row, int eight) { return eight * 8 / WIDE * PIECE + row * WIDE * 2 + (((eight % (WIDE / 8)) ^ (WIDE == 32 ? (row >> 1) & 3 : (row >> 2) & 1)) << 4); }
};

template <class T, int BN, int ST, int GEGLU>
DI void product(const TMap& ta, const TMap& ta1, const TMap& tb, const TMap& tb1, const TMap& tb2, const TMap& to, const TMap& to1, const TMap& to2, const TMap& tr,
    const After<u16>& first, const Others& others, int N, const Boxes& boxes, const Window& w, int full_tiles, int parts, float* sums) {
  constexpr int NACC = BN / 2, OUT = GEGLU ? BN / 2 : BN, PAIRS = OUT / 16, BATCH = 5;
  static_assert(PAIRS % BATCH == 0, "residuals are read in batches");
  typedef Results<OUT> R;
  extern __shared__ unsigned char raw[];
  u32 base = (smem_u32(raw) + 1023) & ~1023u, results = base + Ring<BN, ST>::BYTES;
  const Ring<BN, ST> ring = { base, results + 2 * R::BYTES, results + 2 * R::BYTES + 8 * ST };
  u32 have = ring.empty + 8 * ST, done = have + 16;   // of both groups: whether there is room for results, with residuals in it, and whether they are there
  int tid = threadIdx.x, wg = tid >> 7;
  if (tid == 0) {
    for (int i = 0; i < ST; i++) { mbar_init(ring.full + 8 * i, 1); mbar_init(ring.empty + 8 * i, 4); }
    for (int i = 0; i < 2; i++) { mbar_init(have + 8 * i, 1); mbar_init(done + 8 * i, 4); }
    fence_init();
  }
  __syncthreads();
  after_others();
  int mt = boxes_all(boxes), nt = columns_all(others, (N + BN - 1) / BN), kt = window_all(w);
  int mn = mt * nt, whole = min(mn, full_tiles), total = whole + (mn - whole) * parts;
  const int n = GEGLU ? N / 2 : N;

  if (wg == 0) {
    reg_dec<56>();
    if (tid == 0) {
      Stage at = { 0, 1 };
      for (int t = blockIdx.x; t < total; t += gridDim.x) {
        Turn turn = turn_of(t, whole, parts, kt);
        int mi, ni;
        tile_place(turn.tile, mt, nt, GROUP, mi, ni);
        int which = which_of(others, ni);
        Feed<GEGLU> feed = Feed<GEGLU>::template of<BN>(boxes, w, mi, ni, N, turn.from);
        feed.ask(ring, at, ta, ta1, which == 0 ? tb : which == 1 ? tb1 : tb2, tb1, tb2, w, turn.to - turn.from);
      }
    } else if (tid == 32 || tid == 64) {
      // Residuals and results of one of the two groups.
      const int of = tid / 32 - 1;
      const u32 at = results + of * R::BYTES;
      u32 phase = 0;
      for (int t = blockIdx.x + of * gridDim.x; t < whole; t += 2 * gridDim.x, phase ^= 1) {
        int mi, ni, x0, y0, z0, none;
        tile_place(t, mt, nt, GROUP, mi, ni);
        box_corner(boxes, mi, x0, y0, z0, none);
        int which = which_of(others, ni);
        const TMap& out = which == 0 ? to : which == 1 ? to1 : to2;
        if (first.residual) {
          mbar_expect(have + 8 * of, R::BYTES);
#pragma unroll
          for (int p = 0; p < R::PIECES; p++) tma5(at + p * R::PIECE, tr, have + 8 * of, ni * OUT + p * R::WIDE, x0, 0, y0, z0);
        } else mbar_arrive(have + 8 * of);
        mbar_wait(done + 8 * of, phase);
#pragma unroll
        for (int p = 0; p < R::PIECES; p++) tma5_out(out, at + p * R::PIECE, ni * OUT + p * R::WIDE, x0, 0, y0, z0);
        out_read();
      }
    }
  } else {
    reg_inc<224>();
    const int mine = wg - 1, lane = tid & 31, warp = (tid >> 5) & 3, q = lane & 3;
    Stage at = { 0, 0 };
    u32 phase = 0;
    if (mine == 1) bar_arrive(1, 256);
    for (int t = blockIdx.x, whose = 0; t < total; t += gridDim.x, whose ^= 1) {
      const Turn turn = turn_of(t, whole, parts, kt);
      const int count = turn.to - turn.from;
      if (whose != mine) {
        int s = at.s + count, rounds = s / ST;
        at = { s - rounds * ST, at.phase ^ (rounds & 1) };
        continue;
      }
      float acc[2][NACC];
#pragma unroll
      for (int i = 0; i < NACC; i++) acc[0][i] = acc[1][i] = 0;
      bar_sync(1 + mine, 256);
      int prev = -1;
      for (int k = 0; k < count; k++) {
        mbar_wait(ring.full + 8 * at.s, at.phase);
        u64 da = sdesc(ring.a(at.s), 16, 1024), db = sdesc(ring.b(at.s), 16, 1024);
        wg_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) { WG<T, BN>::ss(acc[0], da + 2 * j, db + 2 * j, 1); WG<T, BN>::ss(acc[1], da + 512 + 2 * j, db + 2 * j, 1); }
        wg_commit();
        wg_wait<1>();
        if (prev >= 0 && lane == 0) mbar_arrive(ring.empty + 8 * prev);
        prev = at.s;
        at.template next<ST>();
      }
      bar_arrive(1 + (mine ^ 1), 256);
      wg_wait<0>();
      if (prev >= 0 && lane == 0) mbar_arrive(ring.empty + 8 * prev);
      if (t >= whole) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
          float* to = sums + ((i64)(turn.tile - whole) * parts + turn.part) * 128 * BN + (m * 64 + warp * 16 + (lane >> 2)) * BN + 2 * q;
#pragma unroll
          for (int j = 0; j < BN / 8; j++) {
            *(float2*)(to + 8 * j) = make_float2(acc[m][4 * j], acc[m][4 * j + 1]);
            *(float2*)(to + 8 * BN + 8 * j) = make_float2(acc[m][4 * j + 2], acc[m][4 * j + 3]);
          }
        }
        continue;
      }

      int mi, ni;
      tile_place(turn.tile, mt, nt, GROUP, mi, ni);
      const After<u16> after = choose(first, others, ni);
      const int c0 = ni * OUT;
      if (after.bias) {
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
          int half = GEGLU && j >= BN / 16, c = c0 + 8 * (j - half * (BN / 16)) + 2 * q;
          float2 b = c < n ? *(const float2*)(after.bias + half * n + c) : make_float2(0.f, 0.f);
#pragma unroll
          for (int m = 0; m < 2; m++) { acc[m][4 * j] += b.x; acc[m][4 * j + 1] += b.y; acc[m][4 * j + 2] += b.x; acc[m][4 * j + 3] += b.y; }
        }
      }
      if (!GEGLU && after.more) {
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
          int c = c0 + 8 * j + 2 * q;
          float2 b = c < n ? *(const float2*)(after.more + c) : make_float2(0.f, 0.f);
#pragma unroll
          for (int m = 0; m < 2; m++) { acc[m][4 * j] += b.x; acc[m][4 * j + 1] += b.y; acc[m][4 * j + 2] += b.x; acc[m][4 * j + 3] += b.y; }
        }
      }
      if (!GEGLU && after.per_item) {
        int x0, y0, z0, none;
        bool ok;
        box_corner(boxes, mi, x0, y0, z0, none);
        const u16* item = after.per_item + (i64)((u32)box_row(boxes, x0, y0, z0, 0, 0, ok) / (u32)after.rows_per_item) * n;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
          int c = c0 + 8 * j + 2 * q;
          u32 v = c < n ? *(const u32*)(item + c) : 0;
          float x = T::lo(v), y = T::hi(v);
#pragma unroll
          for (int m = 0; m < 2; m++) { acc[m][4 * j] += x; acc[m][4 * j + 1] += y; acc[m][4 * j + 2] += x; acc[m][4 * j + 3] += y; }
        }
      }
      if (GEGLU) {
#pragma unroll
        for (int i = 0; i < NACC / 2; i++) { acc[0][i] *= gelu_fast(acc[0][NACC / 2 + i]); acc[1][i] *= gelu_fast(acc[1][NACC / 2 + i]); }
      }
      mbar_wait(have + 8 * mine, phase);
      phase ^= 1;
#pragma unroll
      for (int m = 0; m < 2; m++) {
        const int row = m * 64 + warp * 16 + (lane & 15);
        auto place = [&](int pair) { return results + mine * R::BYTES + R::place(row, 2 * pair + (lane >> 4)); };
        float (&a)[NACC] = acc[m];
#pragma unroll
        for (int p0 = 0; p0 < PAIRS; p0 += BATCH) {
          if (first.residual) {
            u32 v[BATCH][4];
#pragma unroll
            for (int p = 0; p < BATCH; p++) ldsm4(v[p], place(p0 + p));
#pragma unroll
            for (int e = 0; e < BATCH * 4; e++) { int i = 8 * (p0 + e / 4) + 2 * (e % 4); a[i] += T::lo(v[e / 4][e % 4]); a[i + 1] += T::hi(v[e / 4][e % 4]); }
          }
#pragma unroll
          for (int p = p0; p < p0 + BATCH; p++) stsm4(place(p), T::pack(a[8 * p], a[8 * p + 1]), T::pack(a[8 * p + 2], a[8 * p + 3]), T::pack(a[8 * p + 4], a[8 * p + 5]), T::pack(a[8 * p + 6], a[8 * p + 7]));
        }
      }
      // Written by ordinary stores, read by a bulk copy.
      fence_async();
      __syncwarp();
      if (lane == 0) mbar_arrive(done + 8 * mine);
    }
  }
}

#define KERNEL(name, BN, ST, GEGLU) extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ TMap ta, const __grid_constant__ TMap ta1, const __grid_constant__ TMap tb, const __grid_constant__ TMap tb1, const __grid_constant__ TMap tb2, \
    const __grid_constant__ TMap to, const __grid_constant__ TMap to1, const __grid_constant__ TMap to2, const __grid_constant__ TMap tr, PRODUCT_PARAMETERS, OTHERS_PARAMETERS) { \
  PRODUCT_VALUES \
  const Others others = OTHERS_VALUES; \
  product<TY, BN, ST, GEGLU>(ta, ta1, tb, tb1, tb2, to, to1, to2, tr, after, others, N, boxes, window, full_tiles, parts, sums); \
}
// The sizes are known to cuda/ops/product/hopper.rs.
KERNEL(turns_160, 160, 4, 0)
KERNEL(turns_geglu_160, 160, 5, 1)
