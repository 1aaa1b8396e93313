// One row of one head over the parts that are merged: what each of them weighs.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/inline.h"
#include "core/merge.h"

namespace tilewise {

struct PartsOfRow {
  const float* out;  // of the first part: [Dv]
  const float* lse;  // of the first part
  int64_t parts, out_stride, lse_stride;
  float top = -INFINITY, sum = 0;  // sum of exp(lse - top)
  int64_t nonempty = 0, last = 0;  // parts that have keys

  TILEWISE_INLINE PartsOfRow(const Merge& merge, int64_t slot, int64_t row, int64_t head)
      : out(reinterpret_cast<const float*>(merge.out_parts.data) + merge.out_parts.offset(slot, row, head)),
        lse(reinterpret_cast<const float*>(merge.lse_parts.data) + merge.lse_parts.offset(slot, head, row)),
        parts(merge.parts),
        out_stride(merge.out_part_stride),
        lse_stride(merge.lse_part_stride) {
    for (int64_t part = 0; part < parts; ++part) {
      if (is_empty(part)) continue;
      ++nonempty, last = part;
      top = part_lse(part) > top ? part_lse(part) : top;  // a NaN shows in the sum
    }
    for (int64_t part = 0; part < parts; ++part) sum += is_empty(part) ? 0 : std::exp(part_lse(part) - top);
  }

  TILEWISE_INLINE float part_lse(int64_t part) const { return lse[part * lse_stride]; }
  TILEWISE_INLINE bool is_empty(int64_t part) const { return part_lse(part) == -INFINITY; }

  // A part that is alone is handed on as it is, to the bit.
  TILEWISE_INLINE bool is_alone() const { return nonempty == 1; }
  TILEWISE_INLINE float weight(int64_t part) const { return std::exp(part_lse(part) - top) / sum; }
  TILEWISE_INLINE float merged_lse() const {
    if (nonempty == 0) return -INFINITY;
    return is_alone() ? part_lse(last) : top + std::log(sum);
  }
};

}  // namespace tilewise
