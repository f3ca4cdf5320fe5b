// wgmma with N columns: ss = both operands in shared memory (K-major), ss_t = B MN-major, rs_t = A in registers, B in shared memory MN-major.
// The instruction names every register, so its text is put together by macros: R_n and D_n are the first n accumulators.
#pragma once

#define R_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define D_16 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define R_20 R_16 ",%16,%17,%18,%19"
#define D_20 D_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define R_32 R_20 ",%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define D_32 D_20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define R_40 R_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define D_40 D_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define R_48 R_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define D_48 D_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define R_64 R_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D_64 D_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define R_80 R_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define D_80 D_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define R_88 R_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define D_88 D_80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define R_96 R_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define D_96 D_88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define R_112 R_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define D_112 D_96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define R_128 R_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define D_128 D_112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// n columns, r = n / 2 accumulators, r1 .. r5 = r + 1 .. r + 5 (the numbers of the other operands)
#define WGMMA(Class, ty, n, r, r1, r2, r3, r4, r5) template <> struct WG<Class, n> { \
  DI static void ss(float (&d)[r], u64 a, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ty "." ty " {" R_##r "}, %" #r ", %" #r1 ", p, 1, 1, 0, 0;}" : D_##r : "l"(a), "l"(b), "r"(acc)); } \
  DI static void ss_t(float (&d)[r], u64 a, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ty "." ty " {" R_##r "}, %" #r ", %" #r1 ", p, 1, 1, 0, 1;}" : D_##r : "l"(a), "l"(b), "r"(acc)); } \
  DI static void rs_t(float (&d)[r], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int acc) { asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ty "." ty " {" R_##r "}, {%" #r ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4 ", p, 1, 1, 1;}" : D_##r : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(acc)); } \
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
