// Merge: results over disjoint keys become the result over all of them.
#pragma once

#include "core/problem.h"

namespace tilewise {

struct Merge {
  int32_t threads = 0;
  int64_t parts = 0, out_part_stride = 0, lse_part_stride = 0;  // strides in elements
  Tensor out_parts, out;                                        // (slot, row, head, dim); parts: the first one, fp32
  Tensor lse_parts, lse;                                        // (slot, head, row); lse may be absent
};

Status make_merge(const tw_merge& given, Merge& merge);

}  // namespace tilewise
