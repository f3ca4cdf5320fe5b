// What a kernel of crates/tensor/src/cuda/kernels finds on a GPU, on a processor. See emulate.py.
//
// Threads of a block are fibers of one thread of the system. Those of a warp meet where its instructions need all of them, those of a block at barriers; copies beside
// the work arrive as late as they may.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// A thread of the system runs one block at a time.
#define __shared__ static thread_local

struct uint3 { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulated {
// What a lane hands over to the instruction that its warp executes together, and what it gets back.
struct Slot {
  uint32_t in[8];
  uint32_t out[4];
};
// The running thread. Made by driver.cpp.
struct Thread {
  uint3 thread, block, threads, blocks;
  Slot* slots;   // of its warp, for the next meeting
  Slot* later;   // for the one after it: nobody has to wait until all have taken what is theirs
  int lane;
};
#pragma GCC visibility push(default)
extern "C" {
Thread* emulated_thread();
unsigned char* emulated_shared();
void emulated_meet_block();
// Waits for the warp. True for one lane, before the others go on; it has to call emulated_met then.
bool emulated_meet_warp();
void emulated_met();
void emulated_copy(void* to, const void* from, int bytes);
void emulated_commit();
void emulated_wait(int newest);
[[noreturn]] void emulated_fail(const char* why);
}
#pragma GCC visibility pop

// Every lane fills its slot; one of them does the work for all of them; every lane takes what is its own.
template <class Fill, class Work, class Take> inline void meet(Fill fill, Work work, Take take) {
  Thread* me = emulated_thread();
  Slot* all = me->slots;
  std::swap(me->slots, me->later);
  fill(all[me->lane]);
  if (emulated_meet_warp()) {
    work(all);
    emulated_met();
  }
  take(all[me->lane]);
}

inline uint32_t bits(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }
inline float number(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }

inline float from_half(uint16_t h) { _Float16 v; memcpy(&v, &h, 2); return (float)v; }
inline uint16_t to_half(float v) { _Float16 h = (_Float16)v; uint16_t b; memcpy(&b, &h, 2); return b; }
inline float from_bf16(uint16_t b) { return number((uint32_t)b << 16); }
inline uint16_t to_bf16(float v) {
  uint32_t b = bits(v);
  if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (uint16_t)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
inline float from_e4m3(uint8_t b) {
  // The exponent's bias is 7, and f32 has room for all that has no hidden bit.
  float v = (b & 0x7f) == 0x7f ? NAN : number((uint32_t)(b & 0x7f) << 20) * 0x1p120f;
  return b & 0x80 ? -v : v;
}
inline float from_e5m2(uint8_t b) { return from_half((uint16_t)(b << 8)); }
// Round to nearest even; what is too large becomes the largest.
inline uint8_t to_e4m3(float v) {
  uint8_t sign = bits(v) >> 31 ? 0x80 : 0;
  float m = fabsf(v);
  if (!(m == m)) return 0x7f;
  if (m >= 448.f) return sign | 0x7e;
  if (m == 0.f) return sign;
  int exponent;
  frexpf(m, &exponent);
  int step = exponent - 4 < -9 ? -9 : exponent - 4;   // of the last bit
  int units = (int)nearbyintf(ldexpf(m, -step));      // 8 to 16, or less where there is no hidden bit
  if (step == -9 && units < 8) return sign | (uint8_t)units;
  if (units == 16) { units = 8; step++; }
  return sign | (uint8_t)((step + 10) << 3 | (units - 8));
}

// Rows and columns of fragments as the PTX manual has them: group = lane / 4, place = lane % 4.
template <class T> inline uint32_t word_of(T v) { uint32_t w; memcpy(&w, &v, 4); return w; }
template <class T> inline T word_as(uint32_t w) { T v; memcpy(&v, &w, 4); return v; }
template <int K, class Sum, class A, class B> inline void multiply(Slot* all) {
  Sum a[16][K], b[K][8], c[16][8];
  constexpr int EACH = K / 8;   // elements in a word
  for (int lane = 0; lane < 32; lane++) {
    int group = lane / 4, place = lane % 4;
    for (int word = 0; word < 4; word++)
      for (int e = 0; e < EACH; e++) a[group + 8 * (word & 1)][place * EACH + e + (word >> 1) * (K / 2)] = A::at(all[lane].in[word], e);
    for (int word = 0; word < 2; word++)
      for (int e = 0; e < EACH; e++) b[place * EACH + e + word * (K / 2)][group] = B::at(all[lane].in[4 + word], e);
    for (int i = 0; i < 4; i++) c[group + 8 * (i >> 1)][2 * place + (i & 1)] = word_as<Sum>(all[lane].out[i]);
  }
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < K; k++)
      for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) all[lane].out[i] = word_of(c[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)]);
}

template <int K, class Sum, class A, class B> inline void mma(Sum& c0, Sum& c1, Sum& c2, Sum& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  meet([&](Slot& s) {
    s.in[0] = a0; s.in[1] = a1; s.in[2] = a2; s.in[3] = a3; s.in[4] = b0; s.in[5] = b1;
    s.out[0] = word_of(c0); s.out[1] = word_of(c1); s.out[2] = word_of(c2); s.out[3] = word_of(c3);
  }, multiply<K, Sum, A, B>,
  [&](Slot& s) { c0 = word_as<Sum>(s.out[0]); c1 = word_as<Sum>(s.out[1]); c2 = word_as<Sum>(s.out[2]); c3 = word_as<Sum>(s.out[3]); });
}
struct Half { static float at(uint32_t w, int e) { return from_half((uint16_t)(w >> (16 * e))); } };
struct Bf16 { static float at(uint32_t w, int e) { return from_bf16((uint16_t)(w >> (16 * e))); } };
struct E4m3 { static float at(uint32_t w, int e) { return from_e4m3((uint8_t)(w >> (8 * e))); } };
struct E5m2 { static float at(uint32_t w, int e) { return from_e5m2((uint8_t)(w >> (8 * e))); } };
struct S8 { static int at(uint32_t w, int e) { return (int8_t)(w >> (8 * e)); } };
#define SUMS(T) T& c0, T& c1, T& c2, T& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1
#define GIVEN c0, c1, c2, c3, a0, a1, a2, a3, b0, b1
inline void mma_f16(SUMS(float)) { mma<16, float, Half, Half>(GIVEN); }
inline void mma_bf16(SUMS(float)) { mma<16, float, Bf16, Bf16>(GIVEN); }
inline void mma_e4m3(SUMS(float)) { mma<32, float, E4m3, E4m3>(GIVEN); }
inline void mma_e5m2(SUMS(float)) { mma<32, float, E4m3, E5m2>(GIVEN); }
inline void mma_s8(SUMS(int)) { mma<32, int, S8, S8>(GIVEN); }

// Matrices of 8x8 elements of 16 bits, whose rows lanes 8i to 8i + 7 name: lane l gets elements 2 (l % 4) and the next of row l / 4 of each; turned, of column l / 4.
template <int COUNT> inline void ldmatrix(uint32_t* (&to)[COUNT], uint32_t address, bool turned) {
  meet([&](Slot& s) { s.in[0] = address; }, [&](Slot* all) {
    unsigned char* shared = emulated_shared();
    for (int m = 0; m < COUNT; m++) {
      uint16_t rows[8][8];
      for (int r = 0; r < 8; r++) {
        uint32_t at = all[8 * m + r].in[0];
        if (at % 16) emulated_fail("ldmatrix reads from an address that is no multiple of 16");
        memcpy(rows[r], shared + at, 16);
      }
      for (int lane = 0; lane < 32; lane++) {
        int i = lane / 4, j = 2 * (lane % 4);
        uint32_t low = turned ? rows[j][i] : rows[i][j], high = turned ? rows[j + 1][i] : rows[i][j + 1];
        all[lane].out[m] = low | high << 16;
      }
    }
  }, [&](Slot& s) { for (int m = 0; m < COUNT; m++) *to[m] = s.out[m]; });
}
inline void ldmatrix4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t address) { uint32_t* to[] = {&a, &b, &c, &d}; ldmatrix<4>(to, address, false); }
inline void ldmatrix4_turned(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t address) { uint32_t* to[] = {&a, &b, &c, &d}; ldmatrix<4>(to, address, true); }
inline void ldmatrix2_turned(uint32_t& a, uint32_t& b, uint32_t address) { uint32_t* to[] = {&a, &b}; ldmatrix<2>(to, address, true); }

inline void copy16(uint32_t to, const void* from, int bytes) {
  if (to % 16 || (uintptr_t)from % 16) emulated_fail("cp.async of 16 bytes to or from an address that is no multiple of 16");
  emulated_copy(emulated_shared() + to, from, bytes);
}
inline uint32_t shared_address(const void* p) { return (uint32_t)((const unsigned char*)p - emulated_shared()); }

template <class T> inline T shuffle(T value, int from) {
  static_assert(sizeof(T) == 4);
  T found;
  meet([&](Slot& s) { s.in[0] = word_of(value); s.in[1] = (uint32_t)from; }, [](Slot* all) {
    for (int lane = 0; lane < 32; lane++) all[lane].out[0] = all[all[lane].in[1] & 31].in[0];
  }, [&](Slot& s) { found = word_as<T>(s.out[0]); });
  return found;
}

// A kernel as driver.cpp finds it: how it is called with the addresses of its parameters, and how large these are.
struct Entry { void (*call)(void**); int count; const unsigned* sizes; };
template <class... P, size_t... I> inline void call(void (*kernel)(P...), void** given, std::index_sequence<I...>) { kernel(*(P*)given[I]...); }
template <auto KERNEL> struct Kernel;
template <class... P, void (*KERNEL)(P...)> struct Kernel<KERNEL> {
  static void run(void** given) { call(KERNEL, given, std::index_sequence_for<P...>()); }
  static constexpr unsigned SIZES[] = {(unsigned)sizeof(P)..., 0};
  static constexpr Entry ENTRY = {run, sizeof...(P), SIZES};
};
#define EMULATED_KERNEL(name) extern "C" __attribute__((visibility("default"))) const emulated::Entry emulated_kernel_##name = emulated::Kernel<&entry_##name>::ENTRY;
}  // namespace emulated

#define threadIdx (emulated::emulated_thread()->thread)
#define blockIdx (emulated::emulated_thread()->block)
#define blockDim (emulated::emulated_thread()->threads)
#define gridDim (emulated::emulated_thread()->blocks)
inline void __syncthreads() { emulated::emulated_meet_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulated::meet([](emulated::Slot&) {}, [](emulated::Slot*) {}, [](emulated::Slot&) {}); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T> inline T __shfl_xor_sync(unsigned, T value, int mask) { return emulated::shuffle(value, emulated::emulated_thread()->lane ^ mask); }
template <class T> inline T __shfl_up_sync(unsigned, T value, int by) { int lane = emulated::emulated_thread()->lane; return emulated::shuffle(value, lane < by ? lane : lane - by); }
template <class T> inline T __shfl_sync(unsigned, T value, int from) { return emulated::shuffle(value, from); }
inline unsigned atomicAdd(unsigned* to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST); }

inline float __uint_as_float(unsigned b) { return emulated::number(b); }
inline unsigned __float_as_uint(float v) { return emulated::bits(v); }
inline int __float_as_int(float v) { return (int)emulated::bits(v); }
inline float __int_as_float(int b) { return emulated::number((unsigned)b); }
inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
inline float __fsub_rn(float a, float b) { volatile float r = a - b; return r; }
inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
inline float __fdiv_rn(float a, float b) { volatile float r = a / b; return r; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
// Out of range as on a GPU: the nearest there is, and 0 for what is no number.
inline int __float2int_rn(float v) { return !(v == v) ? 0 : v >= 2147483648.f ? INT32_MAX : v < -2147483648.f ? INT32_MIN : (int)nearbyintf(v); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned how) {
  uint64_t all = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned s = how >> (4 * i) & 15, byte = (unsigned)(all >> (8 * (s & 7)) & 255);
    if (s & 8) byte = byte & 0x80 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
