// wgmma with N columns: ss = both operands in shared memory (K-major), ss_t = B MN-major, rs_t = A in registers, B in shared memory MN-major.
// The instruction names every register, so its text is put together by macros: R_n and D_n are the first n accumulators, with the constraint of their type.
#pragma once

#define R_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define D_16(c) c(d[0]), c(d[1]), c(d[2]), c(d[3]), c(d[4]), c(d[5]), c(d[6]), c(d[7]), c(d[8]), c(d[9]), c(d[10]), c(d[11]), c(d[12]), c(d[13]), c(d[14]), c(d[15])
#define R_20 R_16 ",%16,%17,%18,%19"
#define D_20(c) D_16(c), c(d[16]), c(d[17]), c(d[18]), c(d[19])
#define R_32 R_20 ",%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define D_32(c) D_20(c), c(d[20]), c(d[21]), c(d[22]), c(d[23]), c(d[24]), c(d[25]), c(d[26]), c(d[27]), c(d[28]), c(d[29]), c(d[30]), c(d[31])
#define R_40 R_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define D_40(c) D_32(c), c(d[32]), c(d[33]), c(d[34]), c(d[35]), c(d[36]), c(d[37]), c(d[38]), c(d[39])
#define R_48 R_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define D_48(c) D_40(c), c(d[40]), c(d[41]), c(d[42]), c(d[43]), c(d[44]), c(d[45]), c(d[46]), c(d[47])
#define R_64 R_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D_64(c) D_48(c), c(d[48]), c(d[49]), c(d[50]), c(d[51]), c(d[52]), c(d[53]), c(d[54]), c(d[55]), c(d[56]), c(d[57]), c(d[58]), c(d[59]), c(d[60]), c(d[61]), c(d[62]), c(d[63])
#define R_80 R_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define D_80(c) D_64(c), c(d[64]), c(d[65]), c(d[66]), c(d[67]), c(d[68]), c(d[69]), c(d[70]), c(d[71]), c(d[72]), c(d[73]), c(d[74]), c(d[75]), c(d[76]), c(d[77]), c(d[78]), c(d[79])
#define R_88 R_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define D_88(c) D_80(c), c(d[80]), c(d[81]), c(d[82]), c(d[83]), c(d[84]), c(d[85]), c(d[86]), c(d[87])
#define R_96 R_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define D_96(c) D_88(c), c(d[88]), c(d[89]), c(d[90]), c(d[91]), c(d[92]), c(d[93]), c(d[94]), c(d[95])
#define R_112 R_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define D_112(c) D_96(c), c(d[96]), c(d[97]), c(d[98]), c(d[99]), c(d[100]), c(d[101]), c(d[102]), c(d[103]), c(d[104]), c(d[105]), c(d[106]), c(d[107]), c(d[108]), c(d[109]), c(d[110]), c(d[111])
#define R_128 R_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define D_128(c) D_112(c), c(d[112]), c(d[113]), c(d[114]), c(d[115]), c(d[116]), c(d[117]), c(d[118]), c(d[119]), c(d[120]), c(d[121]), c(d[122]), c(d[123]), c(d[124]), c(d[125]), c(d[126]), c(d[127])

// n columns, r = n / 2 accumulators, r1 .. r5 = r + 1 .. r + 5 (the numbers of the other operands)
#define WGMMA(Class, ty, n, r, r1, r2, r3, r4, r5) template <> struct WG<Class, n> { \
  typedef float Sum; \
  DI static void ss(float (&d)[r], u64 a, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ty "." ty " {" R_##r "}, %" #r ", %" #r1 ", p, 1, 1, 0, 0;}" : D_##r("+f") : "l"(a), "l"(b), "r"(acc)); } \
  DI static void ss_t(float (&d)[r], u64 a, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ty "." ty " {" R_##r "}, %" #r ", %" #r1 ", p, 1, 1, 0, 1;}" : D_##r("+f") : "l"(a), "l"(b), "r"(acc)); } \
  DI static void rs_t(float (&d)[r], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ty "." ty " {" R_##r "}, {%" #r ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4 ", p, 1, 1, 1;}" : D_##r("+f") : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(acc)); } \
};
#define WGMMA_BOTH(n, r, r1, r2, r3, r4, r5) WGMMA(F16, "f16", n, r, r1, r2, r3, r4, r5) WGMMA(BF16, "bf16", n, r, r1, r2, r3, r4, r5)
template <class T, int N> struct WG;
WGMMA_BOTH(32, 16, 17, 18, 19, 20, 21)
WGMMA_BOTH(40, 20, 21, 22, 23, 24, 25)
WGMMA_BOTH(64, 32, 33, 34, 35, 36, 37)
WGMMA_BOTH(80, 40, 41, 42, 43, 44, 45)
WGMMA_BOTH(96, 48, 49, 50, 51, 52, 53)
WGMMA_BOTH(128, 64, 65, 66, 67, 68, 69)
WGMMA_BOTH(160, 80, 81, 82, 83, 84, 85)
WGMMA_BOTH(176, 88, 89, 90, 91, 92, 93)
WGMMA_BOTH(192, 96, 97, 98, 99, 100, 101)
WGMMA_BOTH(224, 112, 113, 114, 115, 116, 117)
WGMMA_BOTH(256, 128, 129, 130, 131, 132, 133)

// The same for operands of one byte, 32 along K a step: what an activation and a weight are.
struct E4M3 {};   // both E4M3
struct E5M2 {};   // an activation of E4M3, a weight of E5M2
struct S8 {};     // signed bytes, exact sums
#define WGMMA_BYTES(n, r, r1, r2) \
  template <> struct WG<E4M3, n> { typedef float Sum; DI static void ss(float (&d)[r], u64 a, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" R_##r "}, %" #r ", %" #r1 ", p, 1, 1;}" : D_##r("+f") : "l"(a), "l"(b), "r"(acc)); } }; \
  template <> struct WG<E5M2, n> { typedef float Sum; DI static void ss(float (&d)[r], u64 a, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e5m2 {" R_##r "}, %" #r ", %" #r1 ", p, 1, 1;}" : D_##r("+f") : "l"(a), "l"(b), "r"(acc)); } }; \
  template <> struct WG<S8, n> { typedef int Sum; DI static void ss(int (&d)[r], u64 a, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.s8 {" R_##r "}, %" #r ", %" #r1 ", p;}" : D_##r("+r") : "l"(a), "l"(b), "r"(acc)); } };
WGMMA_BYTES(64, 32, 33, 34)
WGMMA_BYTES(128, 64, 65, 66)
WGMMA_BYTES(160, 80, 81, 82)
WGMMA_BYTES(256, 128, 129, 130)
