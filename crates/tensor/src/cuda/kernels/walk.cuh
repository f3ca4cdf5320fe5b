// A walk over up to six dimensions in row-major order, with steps of its own in two tensors.
#pragma once
#include "common.cuh"

// Steps are in units of what is moved. The dimensions that are used are the last `rank` ones of the lists.
struct Walk {
  i64 rank;
  i64 sizes[6];
  i64 steps_a[6];
  i64 steps_b[6];
};

// Where position `at` of the walk is in both tensors. The outermost dimension needs no division, and unused ones cost nothing.
template <class I> DI void walk_offsets(I at, const Walk& walk, i64& a, i64& b) {
  int first = 6 - (int)walk.rank;
  a = 0;
  b = 0;
#pragma unroll
  for (int d = 5; d >= 0; d--) {
    if (d < first) break;
    I index = at;
    if (d > first) {
      I size = (I)walk.sizes[d];
      at = index / size;
      index -= at * size;
    }
    a += (i64)index * walk.steps_a[d];
    b += (i64)index * walk.steps_b[d];
  }
}
