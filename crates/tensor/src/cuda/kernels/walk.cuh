// A walk over up to six dimensions in row-major order, with steps of its own in two tensors.
#pragma once
#include "common.cuh"

// Six parameters of a kernel, and a list of them. The dimensions that are used are the last ones.
#define SIX(x) i64 x##0, i64 x##1, i64 x##2, i64 x##3, i64 x##4, i64 x##5
#define LIST(x) {x##0, x##1, x##2, x##3, x##4, x##5}

// Where position `at` of the walk is in both tensors. The outermost dimension needs no division, and unused ones cost nothing.
template <class I>
DI void walk_offsets(I at, int rank, const i64 (&sizes)[6], const i64 (&steps_a)[6], const i64 (&steps_b)[6], i64& a, i64& b) {
  a = 0;
  b = 0;
#pragma unroll
  for (int d = 5; d >= 0; d--) {
    if (d < 6 - rank) break;
    I index = at;
    if (d > 6 - rank) {
      I size = (I)sizes[d];
      at = index / size;
      index -= at * size;
    }
    a += (i64)index * steps_a[d];
    b += (i64)index * steps_b[d];
  }
}
