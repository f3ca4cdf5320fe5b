// Hopper only (9.0a): barriers, bulk tensor copies, wgmma plumbing.
#pragma once
#include "common.cuh"
struct alignas(64) TMap { u64 x[16]; };   // the driver's CUtensorMap, passed by value as __grid_constant__

DI void mbar_init(u32 b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(n)); }
DI void mbar_expect(u32 b, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory"); }
DI void mbar_arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
// No ".release.cluster" here: ptxas turns it into MEMBAR.ALL.GPU at every stage, which halves the speed of the whole kernel.
// Nothing but finished wgmma reads is ordered by this arrival, so the plain form is enough.
DI void mbar_arrive_at(u32 b, u32 cta) {
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(b), "r"(cta) : "memory");
}
DI void mbar_wait(u32 b, u32 parity) {
  u32 ok;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(ok) : "r"(b), "r"(parity) : "memory");
  } while (!ok);
}
DI void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DI void cluster_sync() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
DI u32 cluster_rank() { u32 r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
// The description of a tensor, for those who will ask for parts of it.
DI void map_ahead(const TMap& m) { asm volatile("prefetch.tensormap [%0];" ::"l"(&m) : "memory"); }
DI void tma2(u32 dst, const TMap& m, u32 bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(&m), "r"(bar), "r"(x), "r"(y) : "memory");
}
DI void tma2_mc(u32 dst, const TMap& m, u32 bar, int x, int y, u16 mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(dst), "l"(&m), "r"(bar), "h"(mask), "r"(x), "r"(y) : "memory");
}
DI void tma4(u32 dst, const TMap& m, u32 bar, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst), "l"(&m), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
DI void tma5(u32 dst, const TMap& m, u32 bar, int x, int y, int z, int w, int v) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst), "l"(&m), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
}
// The way back, by one thread, which waits until all was read.
DI void tma5_out(const TMap& m, u32 from, int x, int y, int z, int w, int v) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&m), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
}
DI void out_read() { asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory"); }
// What ordinary stores wrote to shared memory can be read by bulk copies and wgmma.
DI void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DI void stsm4(u32 a, u32 x, u32 y, u32 z, u32 w) { asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory"); }
DI void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DI void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DI void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int R> DI void reg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R)); }
template <int R> DI void reg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R)); }
// Shared-memory descriptor, 128-byte swizzle (the layout a bulk copy with SWIZZLE_128B leaves: rows of 128 bytes, atoms of 8 rows).
// K-major operands: sbo = 1024 (next 8 rows), lbo unused; step 16 along K = +32 bytes.
// MN-major operands (V in attention): sbo = 1024 (next 8 K rows), lbo = next 64 columns; step 16 along K = +2048 bytes.
DI u64 sdesc(u32 addr, u32 lbo, u32 sbo) {
  return (u64)((addr & 0x3ffff) >> 4) | ((u64)(lbo >> 4) << 16) | ((u64)(sbo >> 4) << 32) | (1ull << 62);
}
DI void bar_sync(int id, int n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }
DI void bar_arrive(int id, int n) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory"); }
#include "wgmma.cuh"
