#include "core/numbers.h"
#include "core/parts_of_row.h"
#include "cuda/common/element.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/merge.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 256, kRowsOfBlock = kThreads / kWarp;

TILEWISE_DEVICE float merged_out(const PartsOfRow& row, int64_t d) {
  if (row.is_alone()) return row.out[row.last * row.out_stride + d];
  float merged = 0;
  for (int64_t part = 0; part < row.parts; ++part) {
    if (!row.is_empty(part)) merged += row.weight(part) * row.out[part * row.out_stride + d];
  }
  return merged;
}

// A warp for each row of a head. lse_parts may be lse itself, so it is written last.
__global__ __launch_bounds__(kThreads) void merge_rows(const __grid_constant__ Merge merge) {
  const int64_t index = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  const int64_t *n = merge.out.shape, h = index % n[2], i = index / n[2] % n[1], b = index / n[2] / n[1];
  if (b >= n[0]) return;
  const PartsOfRow row(merge, b, i, h);
  for (int64_t d = lane(); d < n[3]; d += kWarp) {
    write_element(merge.out, merge.out.offset(b, i, h, d), merged_out(row, d));
  }
  if (merge.lse && lane() == 0) write_element(merge.lse, merge.lse.offset(b, h, i), row.merged_lse());
}

}  // namespace

Status merge(const Merge& merge, void* stream) {
  const int64_t *n = merge.out.shape, rows = n[0] * n[1] * n[2];
  return launch("cuda.merge_rows", merge_rows, {.blocks = ceil_div(rows, kRowsOfBlock), .threads = kThreads}, stream,
                merge);
}

}  // namespace tilewise::cuda
