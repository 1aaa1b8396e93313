#include "cpu/merge.h"

#include <algorithm>

#include "core/parts_of_row.h"
#include "cpu/common/each_unit.h"
#include "cpu/common/element_values.h"
#include "cpu/simd/portable.h"

namespace tilewise::cpu {
namespace {

constexpr int64_t kColumns = 64;
constexpr int64_t kRowsOfUnit = 16;
constexpr int64_t kSmallMerge = 1 << 15;  // elements that one thread merges before a second one has woken up

// `count` columns from the first one on.
void merge_columns(const PartsOfRow& row, int64_t first, int64_t count, float* merged) {
  if (row.is_alone()) {
    std::copy_n(row.out + row.last * row.out_stride + first, count, merged);
    return;
  }
  std::fill_n(merged, count, 0.0f);
  for (int64_t part = 0; part < row.parts; ++part) {
    if (row.is_empty(part)) continue;
    const float weight = row.weight(part);
    const float* from = row.out + part * row.out_stride + first;
    for (int64_t d = 0; d < count; ++d) merged[d] += weight * from[d];
  }
}

void merge_row(const Merge& merge, int64_t index) {
  const int64_t *n = merge.out.shape, h = index % n[2], i = index / n[2] % n[1], b = index / n[2] / n[1];
  const PartsOfRow row(merge, b, i, h);
  for (int64_t d = 0; d < n[3]; d += kColumns) {
    float merged[kColumns];
    const int64_t count = std::min(kColumns, n[3] - d);
    merge_columns(row, d, count, merged);
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
