// The forward pass of `plain`: every feature and type, one pass over the keys with a running maximum.
#include "cuda/common/joined_lse.cuh"
#include "cuda/kernels.h"
#include "cuda/plain/rows.cuh"

namespace tilewise::cuda::plain {
namespace {

// exp(score - top) of the keys so far: their sum, and O before it is divided. A NaN, which top leaves out, is in both.
template <int kStrips>
struct SoftmaxRow {
  float top = -INFINITY;
  float sum = 0;            // of the keys that this lane saw
  float out[kStrips] = {};  // [Dv]

  // The lane's score becomes exp(score - top); -inf of a key that is not used becomes 0.
  TILEWISE_DEVICE float add(float score) {
    const float higher = fmaxf(top, warp_max(score)), origin = higher == -INFINITY ? 0 : higher;
    const float rescale = expf(top - origin), exponential = expf(score - origin);
    sum = sum * rescale + exponential;
#pragma unroll
    for (float& x : out) x *= rescale;
    top = higher;
    return exponential;
  }

  // Divides O, with one more logit in the denominator; its lse.
  TILEWISE_DEVICE float finish(float sink) {
    const float higher = fmaxf(top, sink), origin = higher == -INFINITY ? 0 : higher;
    const float weight = expf(top - origin), total = warp_sum(sum) * weight + expf(sink - origin);
    const float factor = total == 0 ? 0 : weight / total;
#pragma unroll
    for (float& x : out) x *= factor;
    return higher + logf(total);
  }

  // The result over other keys joins.
  TILEWISE_DEVICE void merge(const float (&prior_out)[kStrips], const JoinedLse& joined) {
    if (joined.joining == 0) return;
#pragma unroll
    for (int c = 0; c < kStrips; ++c) out[c] = joined.of(out[c], prior_out[c]);
  }
};

template <class T>
class ForwardRows {
  static constexpr int kRows = T::kRows, kStrips = T::kStrips;

 public:
  TILEWISE_DEVICE ForwardRows(const Problem& p, const Sequence& s, int64_t h, int64_t first)
      : p_(p), rows_(p, s, h, first), dropout_key_(dropout_key(p)) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) read_row(p.q, row_offset(p.q, s, rows_.row[r].i, h), q_[r]);
  }

  TILEWISE_DEVICE void add_all_keys() {
    const KeyRange keys = rows_.hull();
    for (int64_t key = keys.lo; key < keys.hi; key += kWarp) add_keys(key);
  }

  TILEWISE_DEVICE void store() {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (rows_.has_row(r)) store_row(rows_.row[r].i, softmax_[r]);
  }

 private:
  // 32 keys, of which this lane finishes the scores of one.
  TILEWISE_DEVICE void add_keys(int64_t key) {
    uint32_t used[kRows];
    const uint32_t any = rows_.find_used(p_, key, used);
    float x[kRows] = {};  // of the lane's key: S, then P

    each_of(any, [&](int n) {  // S = Q K^T
      float k[kStrips];
      read_row(p_.k, key_offset(p_.k, rows_.s, key + n, rows_.kv), k);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float qk = dot(q_[r], k);
        if (lane() == n) x[r] = qk;
      }
    });
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (used[r] != 0) x[r] = probability(r, has(used[r], lane()), key + lane(), x[r]);

    each_of(any, [&](int n) {  // O += P V
      float v[kStrips];
      read_row(p_.v, key_offset(p_.v, rows_.s, key + n, rows_.kv), v);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (has(used[r], n)) add_scaled(__shfl_sync(kAllLanes, x[r], n), v, softmax_[r].out);
    });
  }

  TILEWISE_DEVICE float probability(int r, bool is_used, int64_t j, float qk) {
    const ScoreRow& row = rows_.row[r];
    const float exponential = softmax_[r].add(is_used ? score_of(p_, rows_.s, row, j, qk).value : -INFINITY);
    return is_used ? exponential * dropout_of(p_, dropout_key_, rows_.s, row, j) : 0;
  }

  TILEWISE_DEVICE void store_row(int64_t i, SoftmaxRow<kStrips>& row) {
    const Sequence& s = rows_.s;
    float lse = row.finish(p_.sink ? read_element(p_.sink, p_.sink.offset(rows_.h, 0, 0)) : -INFINITY);
    if (p_.prior_out) {
      float prior_out[kStrips];
      read_row(p_.prior_out, row_offset(p_.prior_out, s, i, rows_.h), prior_out);
      const JoinedLse joined = join(lse, read_element(p_.prior_lse, lse_offset(p_.prior_lse, s, i, rows_.h)));
      row.merge(prior_out, joined);
      lse = joined.lse;
      __syncwarp();  // prior_lse may be lse itself
    }
    write_row(p_.out, row_offset(p_.out, s, i, rows_.h), row.out);
    if (p_.lse && lane() == 0) write_element(p_.lse, lse_offset(p_.lse, s, i, rows_.h), lse);
  }

  const Problem& p_;
  const RowBlock<kRows> rows_;
  const uint64_t dropout_key_;
  float q_[kRows][kStrips];  // [kRows][D]
  SoftmaxRow<kStrips> softmax_[kRows];
};

// A warp for kRows rows of a head.
template <class T>
__global__ __launch_bounds__(kThreads, kBlocks) void forward(const __grid_constant__ Problem p) {
  each_block(TokenBlocks::rows(p, T::kRows), p.heads, [&](TokenBlock block, int64_t h) {
    const Sequence s = find_sequence(p, block.sequence);
    if (block.first >= s.rows) return;
    ForwardRows<T> rows(p, s, h, block.first);
    rows.add_all_keys();
    rows.store();
  });
}

Sizing size(const Problem& p, const Settings&) {
  return with_tile(p, [](auto tile) { return Sizing{.query_rows = decltype(tile)::kRows}; });
}

Status load_forward(const Problem& p, const Settings&) {
  return with_tile(p, [](auto tile) { return load("cuda.plain.forward", forward<decltype(tile)>, 0); });
}

Status launch_forward(const Problem& p, const Settings&, const Launch& launch) {
  return with_tile(p, [&](auto tile) {
    using T = decltype(tile);
    const Grid grid = grid_of(TokenBlocks::rows(p, T::kRows).count() * p.heads);
    return cuda::launch("cuda.plain.forward", forward<T>, grid, launch.stream, p);
  });
}

}  // namespace
}  // namespace tilewise::cuda::plain

namespace tilewise::cuda {

const Kernel plain_forward = {.name = "cuda.plain.forward",
                              .pass = Pass::forward,
                              .rank = Rank::fallback,
                              .algorithm = Algorithm::naive,
                              .isa = Isa::cuda,
                              .device_type = TW_CUDA,
                              .runs_on = needs_sm80,
                              .refuse = plain::refuse,
                              .size = plain::size,
                              .load = plain::load_forward,
                              .launch = plain::launch_forward};

}  // namespace tilewise::cuda
