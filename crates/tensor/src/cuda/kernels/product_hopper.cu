// Products and convolutions of stride 1 or 2 on Hopper, f16 and bf16: out = gate * act(A W^T + bias + per_item) + residual.
// With -DOPERAND=E4M3, E5M2 or S8 both operands are bytes with scales for rows and columns, for matrices alone: two bytes are one channel to all that copies.
//
// A convolution needs no gathered copy: the bulk copy of a box of pixels, moved by the kernel position (tap), lays exactly the tile of A that
// wgmma wants, and the copy engine's zeros are the padding. A matrix is a picture of one row, so one kernel serves both.
//
// One block = one producer warp group (bulk copies) and two consumers (64 rows each); tile 128 x BN, 64 channels a step, ST stages, persistent grid.
// The first `full_tiles` tiles are whole. The others are cut in `parts` along K, so that the last wave is full too: those parts leave f32 sums
// in `sums`, (tile, part, 128, BN), and product_finish.cu adds them in order. Where there are few tiles at all, a cluster of blocks makes each: every block has
// a part of K, and finishes a part of the rows with the sums of all, added in order; `sums` is then where sums of columns go, if they are wanted (staged.cuh).
#include "product_feed.cuh"
#include "staged.cuh"
#ifdef OPERAND
constexpr bool BYTES = true;
#define MORE_PARAMETERS SCALES_PARAMETERS
#define MORE_VALUES const Scales by = { row_scale, column_scale }; const Others others = {};
#else
#define OPERAND TY
#define HALVES
constexpr bool BYTES = false;
#define MORE_PARAMETERS OTHERS_PARAMETERS
#define MORE_VALUES const Others others = OTHERS_VALUES; const Scales by = {};
#endif

// What follows, for the accumulators of a tile. Everything that is read comes in batches before it is needed: one read after the other would cost as much
// as the product itself where K is short.
template <class T, int BN, int BATCH> DI void finish_tile(const After<u16>& f, float (&acc)[BN / 2], const i64 (&row)[2], const bool (&ok)[2], int c0, int q, int n) {
  constexpr int GROUPS = BN / 32;
  // Rows that are no multiple of 16 bytes are for the narrowest tiles alone: the code for them would be as long as all the rest.
  const bool whole = BN > 64 || (n & 7) == 0;
  if (f.bias) {
    if (BN == 64 && (n & 1)) {
#pragma unroll
      for (int j = 0; j < BN / 8; j++) {
        float2 b = bias_pair(f.bias, c0 + 8 * j + 2 * q, n);
        acc[4 * j] += b.x; acc[4 * j + 1] += b.y; acc[4 * j + 2] += b.x; acc[4 * j + 3] += b.y;
      }
    } else {
#pragma unroll
      for (int j = 0; j < BN / 8; j++) {
        int c = c0 + 8 * j + 2 * q;
        float2 b = c < n ? *(const float2*)(f.bias + c) : make_float2(0.f, 0.f);
        acc[4 * j] += b.x; acc[4 * j + 1] += b.y; acc[4 * j + 2] += b.x; acc[4 * j + 3] += b.y;
      }
    }
  }
  if (f.more) {
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
      int c = c0 + 8 * j + 2 * q;
      float2 b = BN == 64 ? bias_pair(f.more, c, n) : c < n ? *(const float2*)(f.more + c) : make_float2(0.f, 0.f);
      acc[4 * j] += b.x; acc[4 * j + 1] += b.y; acc[4 * j + 2] += b.x; acc[4 * j + 3] += b.y;
    }
  }
  // `use(i, h, v)` for the words of eight columns of each row that lies at `from + start[h]`, as accumulators lie: v[i] belongs to accumulators 4 i + 2 h and the next.
  u32 held[BATCH][2][4];
  auto read = [&](const u16* from, const i64 (&start)[2], int g0) {
    if (whole) {
#pragma unroll
      for (int g = 0; g < BATCH; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          int c = c0 + 32 * (g0 + g) + 8 * q;
          uint4 w = make_uint4(0, 0, 0, 0);
          if (ok[h] && c < n) w = *(const uint4*)(from + start[h] + c);
          held[g][h][0] = w.x; held[g][h][1] = w.y; held[g][h][2] = w.z; held[g][h][3] = w.w;
        }
    } else {
#pragma unroll
      for (int g = 0; g < BATCH; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) { int c = c0 + 32 * (g0 + g) + 8 * q; load8(held[g][h], from + start[h] + c, ok[h] ? n - c : 0, false); }
    }
#pragma unroll
    for (int g = 0; g < BATCH; g++)
#pragma unroll
      for (int h = 0; h < 2; h++) quad_transpose(held[g][h], q);
  };
  i64 item[2] = {0, 0};
  if (f.per_item || f.gate) {
#pragma unroll
    for (int h = 0; h < 2; h++) item[h] = ok[h] ? (i64)((u32)row[h] / (u32)f.rows_per_item) * n : 0;
  }
  if (f.per_item) {
#pragma unroll
    for (int g0 = 0; g0 < GROUPS; g0 += BATCH) {
      read(f.per_item, item, g0);
#pragma unroll
      for (int e = 0; e < BATCH * 8; e++) {
        int g = e / 8, h = e / 4 % 2, i = e % 4, a = 4 * ((g0 + g) * 4 + i) + 2 * h;
        acc[a] += T::lo(held[g][h][i]); acc[a + 1] += T::hi(held[g][h][i]);
      }
    }
  }
  if (f.act && c0 >= f.act_from) activate_fast(acc, f.act);
  if (f.gate) {
#pragma unroll
    for (int g0 = 0; g0 < GROUPS; g0 += BATCH) {
      read(f.gate, item, g0);
#pragma unroll
      for (int e = 0; e < BATCH * 8; e++) {
        int g = e / 8, h = e / 4 % 2, i = e % 4, a = 4 * ((g0 + g) * 4 + i) + 2 * h;
        acc[a] *= T::lo(held[g][h][i]); acc[a + 1] *= T::hi(held[g][h][i]);
      }
    }
  }
  i64 start[2] = {row[0] * n, row[1] * n};
#pragma unroll
  for (int g0 = 0; g0 < GROUPS; g0 += BATCH) {
    if (f.residual) {
      read(f.residual, start, g0);
#pragma unroll
      for (int e = 0; e < BATCH * 8; e++) {
        int g = e / 8, h = e / 4 % 2, i = e % 4, a = 4 * ((g0 + g) * 4 + i) + 2 * h;
        acc[a] += T::lo(held[g][h][i]); acc[a + 1] += T::hi(held[g][h][i]);
      }
    }
#pragma unroll
    for (int g = 0; g < BATCH; g++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        // The words take the place of the numbers, so that the two ways to write them are apart: jumps over much code cost more than the code.
        u32 o[4];
#pragma unroll
        for (int i = 0; i < 4; i++) { int a = 4 * ((g0 + g) * 4 + i) + 2 * h; o[i] = T::pack(acc[a], acc[a + 1]); }
        quad_transpose(o, q);
#pragma unroll
        for (int i = 0; i < 4; i++) held[g][h][i] = o[i];
      }
    if (whole) {
#pragma unroll
      for (int g = 0; g < BATCH; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          int c = c0 + 32 * (g0 + g) + 8 * q;
          if (ok[h] && c < n) *(uint4*)(f.out + start[h] + c) = make_uint4(held[g][h][0], held[g][h][1], held[g][h][2], held[g][h][3]);
        }
    } else {
#pragma unroll
      for (int g = 0; g < BATCH; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) { int c = c0 + 32 * (g0 + g) + 8 * q; store8(f.out + start[h] + c, held[g][h], ok[h] ? n - c : 0, false); }
    }
  }
}

// A: (channels, x, y phase, y, frame), with stride 2 pairs of pixels as one of twice the channels: then 64 must divide `channels`.
// With two inputs the first `split` steps of 64 channels are those of `ta`, the others those of `ta1`.
// Channels past the last are zeros there, so what W has for them (those of the next tap) does not matter.
// W: (taps * channels, N); 8 divides N except with the narrowest tiles, and N / 2 with GEGLU. There the second half of a tile is the gate's rows, so that value and gate meet in one thread.
// CLUSTER: blocks that make a tile together; 0 for blocks that make one tile after the other, and finish from their registers, which is faster for many.
template <class T, class E, int BN, int ST, int GEGLU, int CLUSTER>
DI void product(const TMap& ta, const TMap& ta1, const TMap& tb, const TMap& tb1, const TMap& tb2, const After<u16>& first, const Others& others, const Scales& by, int N, const Boxes& boxes, const Window& w, int full_tiles, int parts, float* sums) {
  constexpr int NACC = BN / 2;
  constexpr bool WHOLE = (typename WG<E, BN>::Sum)0.5f == 0;   // sums of integers become floats beside themselves: fewer registers are left
  constexpr bool STAGED = CLUSTER > 0;
  constexpr int SHARES = STAGED ? CLUSTER : 1;
  extern __shared__ unsigned char raw[];
  u32 base = (smem_u32(raw) + 1023) & ~1023u;
  // Sums take the place of the stages, which have been read then.
  u32 staged = base, barriers = base + Ring<BN, ST>::BYTES;
  static_assert(!STAGED || Staged<BN>::BYTES + 4096 <= Ring<BN, ST>::BYTES, "stages are room for sums, and for what is made of them");
  const Ring<BN, ST> ring = { base, barriers, barriers + 8 * ST };
  const u32 added_at = barriers + 16 * ST, residuals_at = added_at + Added<BN>::BYTES;
  int tid = threadIdx.x, wg = tid >> 7;
  if (tid == 0) {
    for (int i = 0; i < ST; i++) { mbar_init(ring.full + 8 * i, 1); mbar_init(ring.empty + 8 * i, 8); }
    fence_init();
    if (STAGED) { map_ahead(ta); map_ahead(tb); }
  }
  __syncthreads();
  if (!STAGED) after_others();

  int mt = boxes_all(boxes), nt = columns_all(others, (N + BN - 1) / BN);
  int kt = window_all(w), mn = mt * nt, whole = min(mn, full_tiles), total = whole + (mn - whole) * parts;
  // A cluster makes one tile.
  const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0, start = blockIdx.x / SHARES, stride = STAGED ? mn : gridDim.x;
  // With clusters every block has a part of each tile.
  auto turn_at = [&](int t) { return STAGED ? Turn { t, rank, rank * kt / SHARES, (rank + 1) * kt / SHARES } : turn_of(t, whole, parts, kt); };

  if (wg == 0) {
    if (!STAGED) reg_dec<40>();
    if (tid == 0) {
      Stage at = { 0, 1 };
      for (int t = start; t < total; t += stride) {
        Turn turn = turn_at(t);
        int mi, ni;
        tile_place(turn.tile, mt, nt, GROUP, mi, ni);
        int which = which_of(others, ni);
        Feed<GEGLU> feed = Feed<GEGLU>::template of<BN>(boxes, w, mi, ni, N, turn.from);
        if (STAGED) after_others();
        feed.ask(ring, at, ta, ta1, which == 0 ? tb : which == 1 ? tb1 : tb2, tb1, tb2, w, turn.to - turn.from);
      }
    }
    if (CLUSTER > 1) { __syncwarp(); cluster_sync(); cluster_sync(); }
  } else {
    if (!STAGED) reg_inc<232>();
    int cw = wg - 1, lane = tid & 31, warp = (tid >> 5) & 3, q = lane & 3;
    Stage at = { 0, 0 };
    typename WG<E, BN>::Sum sum[NACC];
    for (int t = start; t < total; t += stride) {
      const Turn turn = turn_at(t);
      int mi, ni;
      Tile tile = { boxes };
      After<u16> after;
      const int lr = cw * 64 + warp * 16 + (lane >> 2), n = GEGLU ? N / 2 : N;
      auto look = [&]() {
        tile_place(turn.tile, mt, nt, GROUP, mi, ni);
        box_corner(boxes, mi, tile.x0, tile.y0, tile.z0, tile.phase);
        after = choose(first, others, ni);
        tile.c0 = GEGLU ? ni * (BN / 2) : ni * BN;
      };

      Added<BN> added = { added_at };
      bool plain = false;
      if (STAGED) {
        look();
        after_others();
        added.template ask<T>(after, boxes, tile.x0, tile.y0, tile.z0, tile.phase, tile.c0, n, tid - 128);
        plain = !after.act && !after.gate && (n & 7) == 0 && added.all;
        if (plain && after.residual) Share<BN>::of(tid - 128, rank, SHARES).ask(residuals_at, after, tile, n);
      }
#pragma unroll
      for (int i = 0; i < NACC; i++) sum[i] = 0;

      int prev = -1;
      for (int k = turn.from; k < turn.to; k++) {
        mbar_wait(ring.full + 8 * at.s, at.phase);
        u64 da = sdesc(ring.a(at.s) + cw * 64 * 128, 16, 1024), db = sdesc(ring.b(at.s), 16, 1024);
        wg_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) WG<E, BN>::ss(sum, da + 2 * j, db + 2 * j, 1);
        wg_commit();
        wg_wait<1>();
        if (prev >= 0 && lane == 0) mbar_arrive(ring.empty + 8 * prev);
        prev = at.s;
        at.template next<ST>();
      }
      wg_wait<0>();
      if (prev >= 0 && lane == 0) mbar_arrive(ring.empty + 8 * prev);

      float acc[NACC];
#pragma unroll
      for (int i = 0; i < NACC; i++) acc[i] = (float)sum[i];
      if (!STAGED && t >= whole) {
        float* to = sums + ((i64)(turn.tile - whole) * parts + turn.part) * 128 * BN + lr * BN + 2 * q;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
          *(float2*)(to + 8 * j) = make_float2(acc[4 * j], acc[4 * j + 1]);
          *(float2*)(to + 8 * BN + 8 * j) = make_float2(acc[4 * j + 2], acc[4 * j + 3]);
        }
        continue;
      }
      if (STAGED) {
        bar_sync(1, 256);
        Staged<BN>::keep(staged, acc, lr, q);
        added.keep(tid - 128);
        constexpr bool TELLS = STAGED && BN % UNIT == 0;
        const u32 left = TELLS && sums && plain ? staged : 0;
        const Share<BN> share = Share<BN>::of(tid - 128, rank, SHARES);
        if (CLUSTER > 1) {
          cluster_sync();
          share.template finish<T>(after, added, residuals_at, plain, tile, n, left, [&](int r, int piece, float (&x)[8]) {
            float y[SHARES][8];
#pragma unroll
            for (int p = 0; p < SHARES; p++) Staged<BN>::read_from(staged, p, r, piece, y[p]);
#pragma unroll
            for (int e = 0; e < 8; e++) {
              x[e] = y[0][e];
#pragma unroll
              for (int p = 1; p < SHARES; p++) x[e] += y[p][e];
            }
          });
        } else {
          bar_sync(1, 256);
          share.template finish<T>(after, added, residuals_at, plain, tile, n, left, [&](int r, int piece, float (&x)[8]) { Staged<BN>::read(staged, r, piece, x); });
        }
        if constexpr (TELLS) {
          float4* room = reinterpret_cast<float4*>(raw + (base - smem_u32(raw)) + Staged<BN>::BYTES);
          if (left) add_columns<BN>(left, room, share.from, share.to, tid - 128, (float2*)sums + ((i64)mi * SHARES + rank) * (n / UNIT) + tile.c0 / UNIT);
        }
        // Nobody ends while others read its sums.
        if (CLUSTER > 1) cluster_sync();
        continue;
      }
      look();
      i64 row[2]; bool ok[2];
#pragma unroll
      for (int h = 0; h < 2; h++) row[h] = box_row(boxes, tile.x0, tile.y0, tile.z0, tile.phase, lr + 8 * h, ok[h]);
      if (BYTES) {
        // Values, then gates where there are any.
        float r[2] = { ok[0] ? by.row[row[0]] : 0.f, ok[1] ? by.row[row[1]] : 0.f };
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
          int half = GEGLU && j >= BN / 16, c = tile.c0 + 8 * (j - half * (BN / 16)) + 2 * q;
          float2 s = make_float2(0.f, 0.f);
          if (c < n) s = *(const float2*)(by.column + half * n + c);
          acc[4 * j] *= r[0] * s.x; acc[4 * j + 1] *= r[0] * s.y; acc[4 * j + 2] *= r[1] * s.x; acc[4 * j + 3] *= r[1] * s.y;
        }
      }
      if (GEGLU) {
        if (after.bias) {
#pragma unroll
          for (int j = 0; j < BN / 16; j++) {
            int c = tile.c0 + 8 * j + 2 * q;
            float2 v = make_float2(0.f, 0.f), g = v;
            if (c < n) { v = *(const float2*)(after.bias + c); g = *(const float2*)(after.bias + n + c); }
            acc[4 * j] += v.x; acc[4 * j + 1] += v.y; acc[4 * j + 2] += v.x; acc[4 * j + 3] += v.y;
            float* gate = acc + NACC / 2 + 4 * j;
            gate[0] += g.x; gate[1] += g.y; gate[2] += g.x; gate[3] += g.y;
          }
        }
#pragma unroll
        for (int g = 0; g < BN / 64; g++) {
          u32 o[2][4];
#pragma unroll
          for (int i = 0; i < 4; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
              int a = 4 * (g * 4 + i) + 2 * h;
              o[h][i] = T::pack(acc[a] * gelu_fast(acc[NACC / 2 + a]), acc[a + 1] * gelu_fast(acc[NACC / 2 + a + 1]));
            }
          int c = tile.c0 + 32 * g + 8 * q;
#pragma unroll
          for (int h = 0; h < 2; h++) {
            quad_transpose(o[h], q);
            if (ok[h] && c < n) *(uint4*)(after.out + row[h] * n + c) = make_uint4(o[h][0], o[h][1], o[h][2], o[h][3]);
          }
        }
      } else {
        finish_tile<T, BN, BN == 160 ? 5 : BN == 64 ? 2 : BN == 256 && WHOLE ? 2 : 4>(after, acc, row, ok, tile.c0, q, n);
      }
    }
  }
}

#define KERNEL(name, BN, ST, GEGLU, CLUSTER, ...) extern "C" __global__ void __VA_ARGS__ name(const __grid_constant__ TMap ta, const __grid_constant__ TMap ta1, const __grid_constant__ TMap tb, const __grid_constant__ TMap tb1, const __grid_constant__ TMap tb2, \
    PRODUCT_PARAMETERS, MORE_PARAMETERS) { \
  PRODUCT_VALUES \
  MORE_VALUES \
  product<TY, OPERAND, BN, ST, GEGLU, CLUSTER>(ta, ta1, tb, tb1, tb2, after, others, by, N, boxes, window, full_tiles, parts, sums); \
}
#define ONE_TILE(name, BN, ST) KERNEL(name, BN, ST, 0, 1, __maxnreg__(BN > 80 ? 120 : 88))
#define IN_CLUSTERS(name, BN, ST, CLUSTER) KERNEL(name, BN, ST, 0, CLUSTER, __cluster_dims__(CLUSTER, 1, 1) __maxnreg__(BN > 80 ? 120 : 88))
// The sizes are known to cuda/ops/product/hopper.rs.
#ifdef HALVES
KERNEL(product_64, 64, 8, 0, 0, __launch_bounds__(384, 1))
KERNEL(product_160, 160, 5, 0, 0, __launch_bounds__(384, 1))
ONE_TILE(product_64_once, 64, 8)
ONE_TILE(product_80_once, 80, 6)
ONE_TILE(product_160_once, 160, 5)
IN_CLUSTERS(product_64_of_2, 64, 8, 2)
IN_CLUSTERS(product_64_of_5, 64, 8, 5)
IN_CLUSTERS(product_80_of_2, 80, 6, 2)
IN_CLUSTERS(product_160_of_2, 160, 5, 2)
IN_CLUSTERS(product_160_of_3, 160, 5, 3)
#endif
KERNEL(product_128, 128, 6, 0, 0, __launch_bounds__(384, 1))
KERNEL(product_256, 256, 4, 0, 0, __launch_bounds__(384, 1))
KERNEL(geglu_128, 128, 6, 1, 0, __launch_bounds__(384, 1))
KERNEL(geglu_256, 256, 4, 1, 0, __launch_bounds__(384, 1))
