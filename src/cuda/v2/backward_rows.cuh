// The kernels around the backward kernel, which go through rows.
#pragma once

#include <climits>
#include <cmath>

#include "core/find_keys.h"
#include "cuda/common/element.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_shift.cuh"
#include "cuda/common/store.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/v2/backward_unit.h"

namespace tilewise::cuda::v2 {

// Sixteen rows of a head: where they lie in their sequence and in the workspace.
struct SixteenRows {
  Sequence s;
  int64_t head, first, work_row;

  TILEWISE_DEVICE SixteenRows(const Problem& p, const BackwardWork& work) {
    const uint32_t row_blocks = work.row_blocks, heads = p.heads, index = blockIdx.x / row_blocks;
    s = find_sequence(p, index / heads);
    head = index % heads;
    first = blockIdx.x % row_blocks * kFragmentRows;
    work_row = head * work.rows + first_work_row(p, s) + first;
  }
};

template <class E>
TILEWISE_DEVICE float2 unpack(uint32_t x) {
  if constexpr (std::is_same_v<E, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(x));
  } else {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x));
  }
}

// Sum of a[i] * b[i] of eight elements.
template <class E>
TILEWISE_DEVICE float dot8(const E* a, const E* b) {
  const uint4 a4 = *reinterpret_cast<const uint4*>(a), b4 = *reinterpret_cast<const uint4*>(b);
  const uint32_t x[4] = {a4.x, a4.y, a4.z, a4.w}, y[4] = {b4.x, b4.y, b4.z, b4.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = unpack<E>(x[i]), v = unpack<E>(y[i]);
    sum += u.x * v.x + u.y * v.y;
  }
  return sum;
}

TILEWISE_DEVICE float dot8(const float* a, const float* b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 u = reinterpret_cast<const float4*>(a)[i], v = reinterpret_cast<const float4*>(b)[i];
    sum += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
  }
  return sum;
}

// Two elements of a gradient of 16 bits: of type E, or of any if E is float.
template <class E>
TILEWISE_DEVICE uint32_t pack_gradient(const Tensor& t, float lo, float hi) {
  if constexpr (!std::is_same_v<E, float>) {
    return ptx::pack<E>(lo, hi);
  } else {
    return pack_as(t.type, lo, hi);
  }
}

// Eight elements of a gradient, in fp32 or 16 bits.
template <class E>
TILEWISE_DEVICE void store_gradient(const Tensor& t, int64_t offset, const float* from, bool accumulate) {
  const auto* x = reinterpret_cast<const float4*>(from);
  if (t.type != Type::f32) {
    *reinterpret_cast<uint4*>(t.data + offset * 2) = {
        pack_gradient<E>(t, x[0].x, x[0].y), pack_gradient<E>(t, x[0].z, x[0].w), pack_gradient<E>(t, x[1].x, x[1].y),
        pack_gradient<E>(t, x[1].z, x[1].w)};
    return;
  }
  auto* to = reinterpret_cast<float4*>(t.data + offset * 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 old = accumulate ? to[i] : float4{0, 0, 0, 0};
    to[i] = {old.x + x[i].x, old.y + x[i].y, old.z + x[i].z, old.w + x[i].w};
  }
}

// The key intervals of sixteen rows; a lane each.
TILEWISE_DEVICE void find_ranges(const Problem& p, const BackwardWork& work, const SixteenRows& rows) {
  const KeyRange live = find_live_keys(p, rows.s, rows.head, rows.first + threadIdx.x);
  const int2 mine = {int(live.lo), int(live.hi)};
  constexpr unsigned kLanes = (1u << kFragmentRows) - 1;
  const int4 range = {__reduce_min_sync(kLanes, live.empty() ? INT_MAX : mine.x), __reduce_max_sync(kLanes, mine.y),
                      __reduce_max_sync(kLanes, mine.x), __reduce_min_sync(kLanes, mine.y)};
  const int64_t at = rows.work_row - (keys_differ_by_head(p) ? 0 : rows.head * work.rows);
  work.live[at + threadIdx.x] = mine;
  if (threadIdx.x == 0) work.ranges[at / kFragmentRows] = range;
}

// Prepares the workspace. D / 8 threads a row.
template <class E, int D>
__global__ __launch_bounds__(2 * D) void prepare_rows(const __grid_constant__ Problem p,
                                                      const __grid_constant__ BackwardWork work) {
  constexpr int kLanes = D / 8;
  __shared__ float part[kFragmentRows][kLanes + 1];
  if (blockIdx.x == 0 && threadIdx.x == 0) *work.ticket = 0;
  const SixteenRows rows(p, work);
  const Sequence& s = rows.s;
  if (rows.first >= round_up(s.rows, kRowStep)) return;

  if (p.dq) {
    auto* zero = reinterpret_cast<float4*>(work.dq_sum + rows.work_row * D);
    zero[threadIdx.x] = zero[threadIdx.x + 2 * D] = float4{0, 0, 0, 0};
  }
  if (threadIdx.x < kMostWarps) work.turns[rows.work_row / kFragmentRows * kMostWarps + threadIdx.x] = 0;

  const int lane = threadIdx.x % kLanes, r = threadIdx.x / kLanes;
  const bool inside = rows.first + r < s.rows && lane * 8 < p.value_dim;
  const auto* out = reinterpret_cast<const E*>(p.out.data) + row_offset(p.out, s, rows.first + r, rows.head);
  const auto* dout = reinterpret_cast<const E*>(p.dout.data) + row_offset(p.dout, s, rows.first + r, rows.head);
  part[r][lane] = inside ? dot8(out + lane * 8, dout + lane * 8) : 0;
  __syncthreads();
  if (threadIdx.x >= kFragmentRows) return;

  if (work.live && (rows.head == 0 || keys_differ_by_head(p))) find_ranges(p, work, rows);
  const int64_t i = rows.first + threadIdx.x;
  float delta = 0, lse = INFINITY;
#pragma unroll
  for (int c = 0; c < kLanes; ++c) delta += part[threadIdx.x][c];
  if (i < s.rows) lse = read_element(p.lse, lse_offset(p.lse, s, i, rows.head));
  if (lse == -INFINITY) lse = INFINITY;
  if (lse == INFINITY) {
    delta = 0;  // a row without keys: what is given for it may be NaN
  } else if (p.dlse) {
    delta -= read_element(p.dlse, lse_offset(p.dlse, s, i, rows.head));
  }
  lse = static_cast<float>(lse * work.lse_unit);
  work.lse[rows.work_row + threadIdx.x] = lse;
  work.delta[rows.work_row + threadIdx.x] = delta;
}

// dQ = softmax_scale * dq_sum, from accumulators to rows. D / 8 threads a row.
template <class E, int D>
__global__ __launch_bounds__(2 * D) void finish_rows(const __grid_constant__ Problem p,
                                                     const __grid_constant__ BackwardWork work) {
  __shared__ __align__(16) float tile[kFragmentRows][D + 8];
  const SixteenRows rows(p, work);
  if (rows.first >= rows.s.rows) return;

  const auto* from = reinterpret_cast<const float4*>(work.dq_sum + rows.work_row * D);
#pragma unroll
  for (int i = threadIdx.x; i < 4 * D; i += 2 * D) {  // i = accumulator * 32 + lane
    const float4 x = from[i];
    const int r = i % 32 / 4, c = i / 32 * 8 + i % 4 * 2;
    *reinterpret_cast<float2*>(&tile[r][c]) = {x.x * p.softmax_scale, x.y * p.softmax_scale};
    *reinterpret_cast<float2*>(&tile[r + 8][c]) = {x.z * p.softmax_scale, x.w * p.softmax_scale};
  }
  __syncthreads();
  const int r = threadIdx.x / (D / 8), c = threadIdx.x % (D / 8) * 8;
  if (rows.first + r < rows.s.rows && c < p.head_dim) {
    store_gradient<E>(p.dq, row_offset(p.dq, rows.s, rows.first + r, rows.head) + c, &tile[r][c], p.accumulate);
  }
}

// dsink: a thread block for each head. A template, as each unit has its own.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void find_dsink(const __grid_constant__ Problem p,
                                                       const __grid_constant__ BackwardWork work) {
  const int64_t head = blockIdx.x;
  sum_dsink(p, head,
            [&](const Sequence& s, int64_t i) { return -work.delta[head * work.rows + first_work_row(p, s) + i]; });
}

// ---- The passes of a call, of which load_main() and launch_main() do the one over blocks of keys.

template <class E, int D, class Load>
Status load_passes(const Problem& p, Load load_main) {
  Status status = cuda::load("v2's prepare_rows", prepare_rows<E, D>, 0);
  if (status.ok() && p.dq) status = cuda::load("v2's finish_rows", finish_rows<E, D>, 0);
  if (status.ok() && p.dsink) status = cuda::load("v2's find_dsink", find_dsink<kSinkThreads>, 0);
  return status.ok() ? load_main() : status;
}

template <class E, int D, class Launch>
Status launch_passes(const Problem& p, const BackwardWork& work, void* stream, Launch launch_main) {
  const Grid rows{.blocks = p.batch * p.heads * work.row_blocks, .threads = 2 * D};
  Status status = cuda::launch("v2's prepare_rows", prepare_rows<E, D>, rows, stream, p, work);
  if (status.ok() && (p.dq || p.dk || p.dv)) status = launch_main();
  if (status.ok() && p.dq) status = cuda::launch("v2's finish_rows", finish_rows<E, D>, rows, stream, p, work);
  if (status.ok() && p.dsink) {
    const Grid heads{.blocks = p.heads, .threads = kSinkThreads};
    status = cuda::launch("v2's find_dsink", find_dsink<kSinkThreads>, heads, stream, p, work);
  }
  return status;
}

}  // namespace tilewise::cuda::v2
