// Copies to shared memory: of the keys of a thread block once, of blocks of queries while others are in work. Columns
// past D or Dv, rows past the end and rows without keys become zeros: what lies there does not count.
#pragma once

#include "cuda/common/tile.cuh"
#include "cuda/v2/backward_shape.cuh"

namespace tilewise::cuda::v2 {

// What is not computed anew for each block where there are registers for it.
template <class T, class X>
TILEWISE_DEVICE X keep(X x) {
  if constexpr (T::kKeeps) x = static_cast<X>(ptx::pin(static_cast<int>(x)));
  return x;
}

template <class T>
class BackwardCopies {
  using E = typename T::Element;
  using Storage = BackwardStorage<T>;
  using KeyCopy = RowCopy<T, T::kKeys>;
  using QueryCopy = RowCopy<T, T::kQueries>;
  static constexpr int kRowPasses = T::kQueries / QueryCopy::kRows;  // rows that a thread copies pieces of

  const Problem& p_;
  const BackwardWork& work_;
  Storage& smem_;
  const KeyBlock<T> block_;

  const int first_token_ = block_.first_row + QueryCopy::row();
  const E* const q_start_ = element<E>(p_.q, block_.q_slot, first_token_, 0) + QueryCopy::col();
  const E* const dout_start_ = element<E>(p_.dout, block_.q_slot, first_token_, 0) + QueryCopy::col();
  const uint32_t to_ = keep<T>(ptx::smem_addr(&smem_.stage[0].q[QueryCopy::row()][QueryCopy::col()]));
  const E *q_, *dout_;  // the thread's place in the block that is copied
  uint32_t dead_ = 0;   // bit i: the row of pass i has no keys

  // The thread's place in a block of Q or dO: from that in row 0 of head 0 where it is kept, otherwise pinned, so that
  // nothing of it is.
  TILEWISE_DEVICE const E* place_in(const Tensor& t, const E* start, const QueryBlock& b) const {
    const int row = b.m * T::kQueries, token = block_.first_row + row + QueryCopy::row();
    if (T::kKeeps) return start + t.offset(0, row, b.head);
    return element<E>(t, ptx::pin(block_.q_slot), ptx::pin(token), b.head) + QueryCopy::col();
  }

  TILEWISE_DEVICE bool is_dead(const QueryBlock& b, int row, bool whole) const {
    if (!T::kRanges) return b.m * T::kQueries + row < smem_.block.keyless_rows;
    if (whole) return false;
    const int2 live = live_keys_of(p_, work_, block_, b, row);
    return live.x >= live.y;
  }

  TILEWISE_DEVICE void load_keys(const Tensor& t, E (&rows)[T::kKeys][T::kPitch], const UsedKeys& used,
                                 int64_t cols) const {
    const E* from = element<E>(t, block_.k_slot, block_.first_token + KeyCopy::row(), block_.kv_head) + KeyCopy::col();
    const uint32_t to = ptx::smem_addr(&rows[KeyCopy::row()][KeyCopy::col()]);
#pragma unroll
    for (int i = 0; i < KeyCopy::kPasses; ++i) {
      KeyCopy::pass_within(i, to, from, t.stride[1], used.end, int(cols), used.begin);
    }
  }
  // How many rows there are for pass i.
  TILEWISE_DEVICE int rows_of(int i, int rows_left) const {
    return kRowPasses > 1 && dead_ >> (i / QueryCopy::kColumnPasses) & 1 ? 0 : rows_left;
  }
  // Pass i of Q or dO.
  TILEWISE_DEVICE void copy_q(int i, uint32_t to, int rows_left) const {
    QueryCopy::pass_within(i, to, q_, p_.q.stride[1], rows_of(i, rows_left), int(p_.head_dim));
  }
  TILEWISE_DEVICE void copy_dout(int i, uint32_t to, int rows_left) const {
    QueryCopy::pass_within(i, to + sizeof(Storage::Stage::q), dout_, p_.dout.stride[1], rows_of(i, rows_left),
                           int(p_.value_dim));
  }

 public:
  static constexpr int kCopies = QueryCopy::kPasses;

  TILEWISE_DEVICE BackwardCopies(const Problem& p, const BackwardWork& work, Storage& smem, const KeyBlock<T>& block)
      : p_(p), work_(work), smem_(smem), block_(block) {}

  // Turns to a block, all pairs of which are live if `whole`, and copies its lse and delta. How many rows of it there
  // are for this thread.
  TILEWISE_DEVICE int begin(const QueryBlock& b, int stage, bool whole) {
    const int i = threadIdx.x % (T::kQueries / 4) * 4, row = b.m * T::kQueries;
    q_ = place_in(p_.q, q_start_, b);
    dout_ = place_in(p_.dout, dout_start_, b);
    const int64_t at = b.head * work_.rows + block_.work_row + row + i;
    if (threadIdx.x < T::kQueries / 4) {
      ptx::cp_async_or_zero(ptx::smem_addr(&smem_.stage[stage].lse[i]), work_.lse + at, true);
    } else if (threadIdx.x < T::kQueries / 2) {
      ptx::cp_async_or_zero(ptx::smem_addr(&smem_.stage[stage].delta[i]), work_.delta + at, true);
    }
    dead_ = 0;
#pragma unroll
    for (int r = 0; r < kRowPasses; ++r) dead_ |= is_dead(b, QueryCopy::row() + r * QueryCopy::kRows, whole) << r;
    return kRowPasses == 1 && dead_ ? 0 : block_.rows - row;
  }
  // There is no block: zeros come instead, and the place of the last one need not be kept.
  TILEWISE_DEVICE void begin_none() {
    q_ = dout_ = nullptr;
    dead_ = 0;
  }
  // Copies `first` <= i < `last` of its Q and dO.
  TILEWISE_DEVICE void some(int first, int last, int stage, int rows_left) const {
    const uint32_t to = to_ + stage * sizeof(typename Storage::Stage);
#pragma unroll
    for (int i = first; i < last; ++i) copy_q(i, to, rows_left), copy_dout(i, to, rows_left);
  }
  TILEWISE_DEVICE void all(const QueryBlock& b, int stage, bool whole) {
    some(0, kCopies, stage, begin(b, stage, whole));
    smem_.full[stage].arrive_when_copied();
  }
  // K, V and the first block: what S needs comes before.
  TILEWISE_DEVICE void first(const UsedKeys& used, const QueryBlock& b, bool whole) {
    const int rows_left = begin(b, 0, whole);
    load_keys(p_.k, smem_.k, used, p_.head_dim);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) copy_q(i, to_, rows_left);
    smem_.first_full.arrive_when_copied();
    load_keys(p_.v, smem_.v, used, p_.value_dim);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) copy_dout(i, to_, rows_left);
    smem_.full[0].arrive_when_copied();
  }
};

}  // namespace tilewise::cuda::v2
