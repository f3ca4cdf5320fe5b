// What CUDA's headers would give, as inline PTX: NVRTC alone compiles these files, no header of CUDA is needed.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define DI __device__ __forceinline__

// Every kernel begins with this, before it reads or writes memory: in a graph it may have been started while the kernel before it still runs, and waits here
// until that has ended and its results can be seen. Then the next one may be started. Elsewhere it does nothing. See crates/tensor/src/cuda/steps.rs.
DI void after_others() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

DI float half_to_float(u16 v) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v)); return f; }
DI u16 float_to_half(float v) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }
DI float bf16_to_float(u16 v) { return __uint_as_float((u32)v << 16); }
// By integers, so that cards of 7.5 have it too: round to nearest even; a NaN stays one.
DI u16 float_to_bf16(float v) {
  u32 b = __float_as_uint(v);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (u16)((b >> 16) | 0x40u);
  return (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

// Element types. `Store` is one element in memory; the pair operations work on two elements in 32 bits (16-bit types only).
struct F32 {
  typedef float Store;
  DI static float load(float v) { return v; }
  DI static float store(float v) { return v; }
};
struct F16 {
  typedef u16 Store;
  DI static float load(u16 v) { return half_to_float(v); }
  DI static u16 store(float v) { return float_to_half(v); }
#if __CUDA_ARCH__ >= 800
  DI static u32 pack(float lo, float hi) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
  DI static void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  DI static u32 pack(float lo, float hi) { return (u32)float_to_half(lo) | (u32)float_to_half(hi) << 16; }
#endif
  DI static float lo(u32 v) { float f; asm("{.reg .b16 a,b; mov.b32 {a,b}, %1; cvt.f32.f16 %0, a;}" : "=f"(f) : "r"(v)); return f; }
  DI static float hi(u32 v) { float f; asm("{.reg .b16 a,b; mov.b32 {a,b}, %1; cvt.f32.f16 %0, b;}" : "=f"(f) : "r"(v)); return f; }
};
struct BF16 {
  typedef u16 Store;
  DI static float load(u16 v) { return bf16_to_float(v); }
#if __CUDA_ARCH__ >= 800
  DI static u16 store(float v) { u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }
  DI static u32 pack(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
  DI static void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  DI static u16 store(float v) { return float_to_bf16(v); }
  DI static u32 pack(float lo, float hi) { return (u32)float_to_bf16(lo) | (u32)float_to_bf16(hi) << 16; }
#endif
  DI static float lo(u32 v) { return __uint_as_float(v << 16); }
  DI static float hi(u32 v) { return __uint_as_float(v & 0xffff0000u); }
};

DI u32 smem_u32(const void* p) { u32 r; asm("{.reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t;}" : "=r"(r) : "l"(p)); return r; }
DI float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DI float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// a / b of numbers from 0 on. Divisions of integers by what is known only when a kernel runs take some 150 cycles each, and whoever asks for the first numbers of a tile
// has several before it can. By floats: what the first quotient leaves is divided once more, and what that leaves is one step more or less. (Volatile, so that no register keeps a reciprocal
// through a loop.)
DI int quotient(int a, int b) {
  float by;
  asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(by) : "f"((float)b));
  int q = (int)((float)a * by), r = a - q * b, more = (int)((float)r * by);
  q += more; r -= more * b;
  return r < 0 ? q - 1 : r >= b ? q + 1 : q;
}

DI u32 shx(u32 v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }
DI float shxf(float v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }

// 4x4 transpose of 32-bit words inside each group of four lanes (t = lane & 3); its own inverse.
// Turns four accumulator fragments (two columns per lane each) into 16 contiguous bytes per lane, and back.
DI void quad_transpose(u32 (&x)[4], int t) {
  u32 s, r;
  s = (t & 1) ? x[0] : x[1]; r = shx(s, 1); if (t & 1) x[0] = r; else x[1] = r;
  s = (t & 1) ? x[2] : x[3]; r = shx(s, 1); if (t & 1) x[2] = r; else x[3] = r;
  s = (t & 2) ? x[0] : x[2]; r = shx(s, 2); if (t & 2) x[0] = r; else x[2] = r;
  s = (t & 2) ? x[1] : x[3]; r = shx(s, 2); if (t & 2) x[1] = r; else x[3] = r;
}

// Fast forms, accurate to a few units of a 16-bit format; f32 results use the exact functions below.
DI float tanh_fast(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DI float gelu_tanh(float x) { return 0.5f * x * (1.f + tanh_fast(0.7978845608f * (x + 0.044715f * x * x * x))); }
DI float gelu_erf(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678f)); }
DI float silu(float x) { return x * reciprocal(1.f + ex2(-1.44269504f * x)); }

#if __CUDA_ARCH__ >= 800
// Ampere: asynchronous 16-byte copies (`bytes` below 16: the rest is zero)
DI void cp16(u32 dst, const void* src, int bytes) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)); }
DI void cp_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> DI void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }
#endif
// Fragment loads (7.5 and later)
DI void ldsm4(u32 (&r)[4], u32 a) { asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a)); }
DI void ldsm2t(u32& r0, u32& r1, u32 a) { asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(a)); }
DI void ldsm4t(u32 (&r)[4], u32 a) { asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a)); }
