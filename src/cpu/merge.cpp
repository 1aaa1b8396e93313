#include "cpu/merge.h"

#include <algorithm>
#include <cmath>

#include "cpu/common/each_unit.h"
#include "cpu/common/element_values.h"
#include "cpu/simd/portable.h"

namespace tilewise::cpu {
namespace {

constexpr int64_t kColumns = 64;
constexpr int64_t kRowsOfUnit = 16;
constexpr int64_t kSmallMerge = 1 << 15;  // elements that one thread merges before a second one has woken up

// One row of one head over all parts.
struct Row {
  const float* out;  // of the first part: [Dv]
  const float* lse;  // of the first part
  int64_t parts, out_stride, lse_stride;
  float top = -INFINITY, sum = 0;  // sum of exp(lse - top)
  int64_t nonempty = 0, last = 0;  // parts that have keys

  float part_lse(int64_t part) const { return lse[part * lse_stride]; }
  bool is_empty(int64_t part) const { return part_lse(part) == -INFINITY; }

  void add_up() {
    for (int64_t part = 0; part < parts; ++part) {
      if (is_empty(part)) continue;
      ++nonempty, last = part;
      top = std::max(top, part_lse(part));  // a NaN shows in the sum
    }
    for (int64_t part = 0; part < parts; ++part) sum += is_empty(part) ? 0 : std::exp(part_lse(part) - top);
  }

  // A part that is alone is handed on as it is, to the bit.
  float weight(int64_t part) const { return nonempty == 1 ? 1.0f : std::exp(part_lse(part) - top) / sum; }
  float merged_lse() const { return nonempty <= 1 ? (nonempty ? part_lse(last) : -INFINITY) : top + std::log(sum); }

  void columns(int64_t first, int64_t count, float* merged) const {
    std::fill_n(merged, count, 0.0f);
    if (nonempty == 1) {
      std::copy_n(out + last * out_stride + first, count, merged);
      return;
    }
    for (int64_t part = 0; part < parts; ++part) {
      if (is_empty(part)) continue;
      const float w = weight(part);
      const float* from = out + part * out_stride + first;
      for (int64_t d = 0; d < count; ++d) merged[d] += w * from[d];
    }
  }
};

void merge_row(const Merge& merge, int64_t index) {
  const int64_t *n = merge.out.shape, h = index % n[2], i = index / n[2] % n[1], b = index / n[2] / n[1];
  Row row{reinterpret_cast<const float*>(merge.out_parts.data) + merge.out_parts.offset(b, i, h),
          reinterpret_cast<const float*>(merge.lse_parts.data) + merge.lse_parts.offset(b, h, i), merge.parts,
          merge.out_part_stride, merge.lse_part_stride};
  row.add_up();
  for (int64_t d = 0; d < n[3]; d += kColumns) {
    float merged[kColumns];
    const int64_t count = std::min(kColumns, n[3] - d);
    row.columns(d, count, merged);
    write_values(merge.out, merge.out.offset(b, i, h, d), count, merged);
  }
  const float lse = row.merged_lse();
  if (merge.lse) write_values(merge.lse, merge.lse.offset(b, h, i), 1, &lse);
}

}  // namespace

void merge(const Merge& merge, const Parallel& parallel) {
  const int64_t *n = merge.out.shape, rows = n[0] * n[1] * n[2], units = ceil_div(rows, kRowsOfUnit);
  const bool is_small = rows * n[3] * merge.parts < kSmallMerge;
  const int64_t threads = merge.threads > 0 ? merge.threads : (is_small ? 1 : available_cores());
  const int64_t workers = std::min({threads, int64_t{kMaxWorkers}, std::max<int64_t>(units, 1)});
  each_unit<portable::Simd>(parallel, workers, units, [&](int64_t, int64_t unit) {
    const int64_t first = unit * kRowsOfUnit;
    for (int64_t row = first; row < std::min(first + kRowsOfUnit, rows); ++row) merge_row(merge, row);
  });
}

}  // namespace tilewise::cpu
