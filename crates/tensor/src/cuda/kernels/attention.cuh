// What the attention kernels have in common.
#pragma once
#include "common.cuh"

constexpr float LOG2_E = 1.44269504f;

// Blocks are numbered along one dimension (the others end at 65535): query tiles first, then heads, then items.
struct BlockPlace { int tile, head, item; };
DI BlockPlace block_place(u32 block, int queries, int rows, int heads) {
  u32 tiles = (queries + rows - 1) / rows, rest = block / tiles;
  return {(int)(block - rest * tiles), (int)(rest % heads), (int)(rest / heads)};
}

DI float minus_infinity() { return __uint_as_float(0xff800000u); }

// Which keys a query may look at: all, those up to its own position, or what is added to the scores (keys are next to each other).
enum MaskKind { MASK_NONE = 0, MASK_CAUSAL = 1, MASK_ADD = 2 };
