// The backward pass of `plain`: a warp owns rows of dQ, another owns keys with their dK and dV, and each computes its
// pairs again, so that every sum has one order.
#include "cuda/kernels.h"
#include "cuda/plain/backward.h"
#include "cuda/plain/pairs.cuh"

namespace tilewise::cuda::plain {
namespace {

// A gradient's row, added to what is there if the call accumulates.
template <int kStrips>
TILEWISE_DEVICE void store_gradient(const Problem& p, const Tensor& t, int64_t offset, float (&x)[kStrips]) {
  if (!t) return;
  if (p.accumulate) {
    float before[kStrips];
    read_row(t, offset, before);
    add_scaled(1, before, x);
  }
  write_row(t, offset, x);
}

// ---- dQ.

template <class T>
class QueryGradient {
  static constexpr int kRows = T::kRows, kStrips = T::kStrips;

 public:
  TILEWISE_DEVICE QueryGradient(const Problem& p, const Tensor& shifts, const Sequence& s, int64_t h, int64_t first)
      : p_(p), rows_(p, s, h, first), dropout_key_(dropout_key(p)) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = rows_.row[r].i;
      gradient_[r] = row_gradient(p, shifts, s, h, i);
      if (!gradient_[r].is_live()) rows_.live[r] = {};
      read_row(p.q, row_offset(p.q, s, i, h), q_[r]);
      read_row(p.dout, row_offset(p.dout, s, i, h), dout_[r]);
    }
  }

  TILEWISE_DEVICE void add_all_keys() {
    const KeyRange keys = rows_.hull();
    for (int64_t key = keys.lo; key < keys.hi; key += kWarp) add_keys(key);
  }

  TILEWISE_DEVICE void store() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows_.has_row(r)) store_gradient(p_, p_.dq, row_offset(p_.dq, rows_.s, rows_.row[r].i, rows_.h), dq_[r]);
    }
  }

 private:
  // 32 keys, of which this lane finishes one.
  TILEWISE_DEVICE void add_keys(int64_t key) {
    const Sequence& s = rows_.s;
    uint32_t used[kRows];
    const uint32_t any = rows_.find_used(p_, key, used);
    float qk[kRows] = {}, dp[kRows] = {}, dqk[kRows] = {};  // of the lane's key

    each_of(any, [&](int n) {  // S = Q K^T, dP = dO V^T
      float k[kStrips], v[kStrips];
      read_row(p_.k, key_offset(p_.k, s, key + n, rows_.kv), k);
      read_row(p_.v, key_offset(p_.v, s, key + n, rows_.kv), v);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float x = dot(q_[r], k), y = dot(dout_[r], v);
        if (lane() == n) qk[r] = x, dp[r] = y;
      }
    });
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!has(used[r], lane())) continue;
      dqk[r] = pair_gradient(p_, dropout_key_, s, rows_.row[r], gradient_[r], key + lane(), qk[r], dp[r]).dqk;
    }
    __syncwarp();
    each_of(any, [&](int n) {  // dQ += dS K
      float k[kStrips];
      read_row(p_.k, key_offset(p_.k, s, key + n, rows_.kv), k);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (has(used[r], n)) add_scaled(__shfl_sync(kAllLanes, dqk[r], n), k, dq_[r]);
    });
  }

  const Problem& p_;
  RowBlock<kRows> rows_;
  const uint64_t dropout_key_;
  RowGradient gradient_[kRows];
  float q_[kRows][kStrips], dout_[kRows][kStrips];  // [kRows][D], [kRows][Dv]
  float dq_[kRows][kStrips] = {};                   // [kRows][D]
};

// A warp for kRows rows of a head.
template <class T>
__global__ __launch_bounds__(kThreads, kBlocks) void dq(const __grid_constant__ Problem p,
                                                        const __grid_constant__ Tensor shifts) {
  each_block(TokenBlocks::rows(p, T::kRows), p.heads, [&](TokenBlock block, int64_t h) {
    const Sequence s = find_sequence(p, block.sequence);
    if (block.first >= s.rows) return;
    QueryGradient<T> rows(p, shifts, s, h, block.first);
    rows.add_all_keys();
    rows.store();
  });
}

// ---- dK and dV.

// Keys [first, first + kRows) of a kv head. Those past the end repeat the last one; no row sees them.
template <class T>
class KeyGradient {
  static constexpr int kKeys = T::kRows, kStrips = T::kStrips;

 public:
  TILEWISE_DEVICE KeyGradient(const Problem& p, const Tensor& shifts, const Sequence& s, int64_t kv, int64_t first)
      : p_(p), shifts_(shifts), s_(s), kv_(kv), first_(first), dropout_key_(dropout_key(p)) {
#pragma unroll
    for (int r = 0; r < kKeys; ++r) {
      const int64_t j = lesser(first + r, s.keys - 1);
      read_row(p.k, key_offset(p.k, s, j, kv), k_[r]);
      read_row(p.v, key_offset(p.v, s, j, kv), v_[r]);
    }
  }

  TILEWISE_DEVICE void add_all_rows() {
    for (int64_t h = kv_ * p_.group(); h < (kv_ + 1) * p_.group(); ++h)
      for (int64_t i = 0; i < s_.rows; i += kWarp) add_rows(h, i);
  }

  TILEWISE_DEVICE void store() {
#pragma unroll
    for (int r = 0; r < kKeys; ++r) {
      const int64_t j = first_ + r;
      if (j >= s_.keys) break;
      store_gradient(p_, p_.dk, key_offset(p_.dk, s_, j, kv_), dk_[r]);
      store_gradient(p_, p_.dv, key_offset(p_.dv, s_, j, kv_), dv_[r]);
    }
  }

 private:
  // 32 rows, of which this lane finishes one.
  TILEWISE_DEVICE void add_rows(int64_t h, int64_t first) {
    const int64_t i = lesser(first + lane(), s_.rows - 1);
    const ScoreRow row = score_row(p_, s_, h, i);
    const RowGradient gradient = row_gradient(p_, shifts_, s_, h, i);
    const KeyRange live = gradient.is_live() ? find_live_keys(p_, s_, h, first + lane()) : KeyRange{};
    uint32_t users[kKeys], any = 0;  // rows that use the key
#pragma unroll
    for (int r = 0; r < kKeys; ++r) {
      users[r] = __ballot_sync(kAllLanes, uses(p_, s_, row, live, first_ + r));
      any |= users[r];
    }
    float qk[kKeys] = {}, dp[kKeys] = {};  // of the lane's row
    PairGradient pair[kKeys] = {};

    each_of(any, [&](int n) {  // S^T = K Q^T, dP^T = V dO^T
      float q[kStrips], dout[kStrips];
      read_queries(h, first + n, q, dout);
#pragma unroll
      for (int r = 0; r < kKeys; ++r) {
        const float x = dot(k_[r], q), y = dot(v_[r], dout);
        if (lane() == n) qk[r] = x, dp[r] = y;
      }
    });
#pragma unroll
    for (int r = 0; r < kKeys; ++r) {
      if (!has(users[r], lane())) continue;
      pair[r] = pair_gradient(p_, dropout_key_, s_, row, gradient, first_ + r, qk[r], dp[r]);
    }
    __syncwarp();
    each_of(any, [&](int n) {  // dK += dS^T Q, dV += P^T dO
      float q[kStrips], dout[kStrips];
      read_queries(h, first + n, q, dout);
#pragma unroll
      for (int r = 0; r < kKeys; ++r) {
        if (!has(users[r], n)) continue;
        add_scaled(__shfl_sync(kAllLanes, pair[r].dqk, n), q, dk_[r]);
        add_scaled(__shfl_sync(kAllLanes, pair[r].p, n), dout, dv_[r]);
      }
    });
  }

  TILEWISE_DEVICE void read_queries(int64_t h, int64_t i, float (&q)[kStrips], float (&dout)[kStrips]) const {
    read_row(p_.q, row_offset(p_.q, s_, i, h), q);
    read_row(p_.dout, row_offset(p_.dout, s_, i, h), dout);
  }

  const Problem& p_;
  const Tensor& shifts_;
  const Sequence s_;
  const int64_t kv_, first_;
  const uint64_t dropout_key_;
  float k_[kKeys][kStrips], v_[kKeys][kStrips];              // [kKeys][D], [kKeys][Dv]
  float dk_[kKeys][kStrips] = {}, dv_[kKeys][kStrips] = {};  // the same
};

// A warp for kRows keys of a kv head.
template <class T>
__global__ __launch_bounds__(kThreads, kBlocks) void dk_dv(const __grid_constant__ Problem p,
                                                           const __grid_constant__ Tensor shifts) {
  each_block(TokenBlocks::keys(p, T::kRows), p.heads_kv, [&](TokenBlock block, int64_t kv) {
    const Sequence s = find_sequence(p, block.sequence);
    if (block.first >= s.keys) return;
    KeyGradient<T> keys(p, shifts, s, kv, block.first);
    keys.add_all_rows();
    keys.store();
  });
}

// ---- The pass.

Sizing size(const Problem& p, const Settings&) {
  return with_tile(p, [&](auto tile) {
    constexpr int kRows = decltype(tile)::kRows;
    return Sizing{
        .query_rows = kRows, .chunk_keys = kRows, .workspace_bytes = row_shift_bytes(p) + bias_partial_bytes(p)};
  });
}

Status load_backward(const Problem& p, const Settings&) {
  return with_tile(p, [&](auto tile) {
    using T = decltype(tile);
    Status status = load_backward_terms(p);
    if (status.ok()) status = load("cuda.plain.dq", dq<T>, 0);
    if (status.ok()) status = load("cuda.plain.dk_dv", dk_dv<T>, 0);
    return status;
  });
}

Status launch_backward(const Problem& p, const Settings&, const Launch& launch) {
  const Tensor shifts = row_shifts(p, launch.workspace);
  char* const partials = launch.workspace + row_shift_bytes(p);
  return with_tile(p, [&](auto tile) {
    using T = decltype(tile);
    const Grid of_rows = grid_of(TokenBlocks::rows(p, T::kRows).count() * p.heads);
    const Grid of_keys = grid_of(TokenBlocks::keys(p, T::kRows).count() * p.heads_kv);
    Status status = launch_row_shifts(p, shifts, launch.stream);
    if (status.ok() && p.dq) status = cuda::launch("cuda.plain.dq", dq<T>, of_rows, launch.stream, p, shifts);
    if (status.ok() && (p.dk || p.dv)) {
      status = cuda::launch("cuda.plain.dk_dv", dk_dv<T>, of_keys, launch.stream, p, shifts);
    }
    if (status.ok() && p.dbias) status = launch_bias_gradient(p, shifts, partials, launch.stream);
    if (status.ok() && p.dsink) status = launch_sink_gradient(p, shifts, launch.stream);
    return status;
  });
}

}  // namespace
}  // namespace tilewise::cuda::plain

namespace tilewise::cuda {

const Kernel plain_backward = {.name = "cuda.plain.backward",
                               .pass = Pass::backward,
                               .rank = Rank::fallback,
                               .algorithm = Algorithm::naive,
                               .isa = Isa::cuda,
                               .device_type = TW_CUDA,
                               .runs_on = needs_sm80,
                               .refuse = plain::refuse,
                               .size = plain::size,
                               .load = plain::load_backward,
                               .launch = plain::launch_backward};

}  // namespace tilewise::cuda
