#include "core/numbers.h"
#include "cuda/common/element.cuh"
#include "cuda/merge.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32, kRowsOfBlock = kThreads / kWarp;

// One row of one head over all parts.
struct PartsOfRow {
  const float* out;  // of the first part: [Dv]
  const float* lse;  // of the first part
  int64_t parts, out_stride, lse_stride;
  float top = -INFINITY, sum = 0;  // sum of exp(lse - top)
  int64_t nonempty = 0, last = 0;  // parts that have keys

  TILEWISE_DEVICE float part_lse(int64_t part) const { return lse[part * lse_stride]; }
  TILEWISE_DEVICE bool is_empty(int64_t part) const { return part_lse(part) == -INFINITY; }

  TILEWISE_DEVICE void add_up() {
    for (int64_t part = 0; part < parts; ++part) {
      if (is_empty(part)) continue;
      ++nonempty, last = part;
      top = fmaxf(top, part_lse(part));  // a NaN shows in the sum
    }
    for (int64_t part = 0; part < parts; ++part) sum += is_empty(part) ? 0 : expf(part_lse(part) - top);
  }

  // A part that is alone is handed on as it is, to the bit.
  TILEWISE_DEVICE float merged_lse() const {
    if (nonempty == 0) return -INFINITY;
    return nonempty == 1 ? part_lse(last) : top + logf(sum);
  }
  TILEWISE_DEVICE float merged_out(int64_t d) const {
    if (nonempty == 1) return out[last * out_stride + d];
    float merged = 0;
    for (int64_t part = 0; part < parts; ++part) {
      if (!is_empty(part)) merged += expf(part_lse(part) - top) / sum * out[part * out_stride + d];
    }
    return merged;
  }
};

// A warp for each row of a head. lse_parts may be lse itself, so it is written last.
__global__ __launch_bounds__(kThreads) void merge_rows(const __grid_constant__ Merge merge) {
  const int64_t index = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  const int64_t *n = merge.out.shape, h = index % n[2], i = index / n[2] % n[1], b = index / n[2] / n[1];
  if (b >= n[0]) return;
  PartsOfRow row{reinterpret_cast<const float*>(merge.out_parts.data) + merge.out_parts.offset(b, i, h),
                 reinterpret_cast<const float*>(merge.lse_parts.data) + merge.lse_parts.offset(b, h, i), merge.parts,
                 merge.out_part_stride, merge.lse_part_stride};
  row.add_up();
  for (int64_t d = threadIdx.x % kWarp; d < n[3]; d += kWarp) {
    write_element(merge.out, merge.out.offset(b, i, h, d), row.merged_out(d));
  }
  if (merge.lse && threadIdx.x % kWarp == 0) write_element(merge.lse, merge.lse.offset(b, h, i), row.merged_lse());
}

}  // namespace

Status merge(const Merge& merge, void* stream) {
  const int64_t *n = merge.out.shape, rows = n[0] * n[1] * n[2];
  return launch("merge_rows", merge_rows, {.blocks = ceil_div(rows, kRowsOfBlock), .threads = kThreads}, stream, merge);
}

}  // namespace tilewise::cuda
