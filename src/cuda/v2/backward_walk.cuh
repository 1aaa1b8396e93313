// The block of keys that a thread block owns, and its walk over the blocks of queries that may use them: from the last
// block down, one query head after the other. In order and causal it is from the first block up: all blocks of keys
// start on the diagonal at once, and take their turns at a block of queries from there.
#pragma once

#include <climits>

#include "core/find_keys.h"
#include "cuda/common/warp.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/v2/backward_unit.h"

namespace tilewise::cuda::v2 {

template <class T>
struct KeyBlock {
  int number;                          // of the blocks of its sequence
  int batch, kv_head;                  // of its sequence
  int first_head, end_head;            // query heads that read it
  int first_key, k_slot, first_token;  // first_token: of its first key
  int keys_left;                       // of the sequence, from its first key on
  int q_slot, first_row, rows;         // of the sequence
  int work_row;                        // of row 0 of head 0
  int keyless_rows;                    // causal: so many rows come before the first key
  int diagonal;                        // causal: row i uses key j of the block if j + diagonal <= i

  KeyBlock() = default;
  // `index`: those of one section of heads after each other, those with most queries first; for a walk up last, as no
  // block may wait for one that starts later.
  TILEWISE_DEVICE KeyBlock(const Problem& p, const BackwardWork& work, int index, bool up = false) {
    const int heads_kv = int(p.heads_kv), per_section = work.section * work.key_blocks, section = index / per_section;
    const int within = index - section * per_section;
    const int width = min(work.section, int(p.batch) * heads_kv - section * work.section);
    const int pair = section * work.section + within % width;
    number = ptx::uniform(up ? work.key_blocks - 1 - within / width : within / width);
    first_key = number * T::kKeys;
    batch = ptx::uniform(pair / heads_kv), kv_head = ptx::uniform(pair % heads_kv);
    first_head = kv_head * work.group, end_head = first_head + work.group;

    const Sequence s = find_sequence(p, batch);
    const int keys = ptx::uniform(int(s.keys));
    q_slot = ptx::uniform(int(s.q_slot)), first_row = ptx::uniform(int(s.first_row)), rows = ptx::uniform(int(s.rows));
    k_slot = ptx::uniform(int(s.k_slot)), first_token = ptx::uniform(int(s.first_key)) + first_key;
    keys_left = keys - first_key;
    work_row = ptx::uniform(int(first_work_row(p, s)));
    diagonal = first_key - (p.top_left ? 0 : keys - rows);
    keyless_rows = p.causal ? diagonal - first_key : 0;
  }
};

// Block m of queries of a head.
struct QueryBlock {
  int m, head;
};

// Its first row in the workspace.
template <class T>
TILEWISE_DEVICE int64_t work_row_of(const BackwardWork& work, const KeyBlock<T>& block, const QueryBlock& b) {
  return b.head * work.rows + block.work_row + b.m * T::kQueries;
}

// The keys of the block that one of its queries uses: x <= j < y.
template <class T>
TILEWISE_DEVICE int2 live_keys_of(const Problem& p, const BackwardWork& work, const KeyBlock<T>& block,
                                  const QueryBlock& b, int query) {
  const int2 live = work.live[work_row_of(work, block, {b.m, keys_differ_by_head(p) ? b.head : 0}) + query];
  return {live.x - block.first_key, live.y - block.first_key};
}

// Keys of the block that some row may use: the others count as absent, whatever lies there.
struct UsedKeys {
  int begin, end;
};

// Masks that are none or causal: which blocks of queries there are is plain arithmetic.
template <class T>
class SimpleWalk {
  using Block = KeyBlock<T>;
  const Problem& p_;
  const BackwardWork& work_;
  const bool causal_;
  const int m_begin_, m_end_;

  TILEWISE_DEVICE bool up() const { return goes_up(p_, work_); }

 public:
  static TILEWISE_DEVICE bool goes_up(const Problem& p, const BackwardWork& work) { return p.causal && work.in_order; }
  TILEWISE_DEVICE SimpleWalk(const Problem& p, const BackwardWork& work, const Block& block)
      : p_(p),
        work_(work),
        causal_(p.causal),
        m_begin_(p.causal ? max(0, block.diagonal) / T::kQueries : 0),
        m_end_((block.rows + T::kQueries - 1) / T::kQueries) {}

  TILEWISE_DEVICE UsedKeys used(const Block& block) const {
    return {0, causal_ ? min(block.keys_left, block.rows - block.diagonal) : block.keys_left};
  }
  TILEWISE_DEVICE QueryBlock first(const Block& block) const {
    return {up() ? m_begin_ : m_end_ - 1, m_begin_ < m_end_ ? block.first_head : block.end_head};
  }
  TILEWISE_DEVICE QueryBlock after(const Block&, const QueryBlock& b) const {
    if (up()) return b.m + 1 < m_end_ ? QueryBlock{b.m + 1, b.head} : QueryBlock{m_begin_, b.head + 1};
    return b.m > m_begin_ ? QueryBlock{b.m - 1, b.head} : QueryBlock{m_end_ - 1, b.head + 1};
  }
  // Whether every pair of the two blocks is live.
  TILEWISE_DEVICE bool is_whole(const Block& block, const QueryBlock& b) const {
    return used(block).end >= T::kKeys && (!causal_ || T::kKeys - 1 + block.diagonal <= b.m * T::kQueries);
  }
  // How many blocks of keys add to the block of queries before this one.
  TILEWISE_DEVICE int turn(const Block& block, const QueryBlock& b) const {
    if (!up()) return block.number;
    const int last_key = min(block.rows, (b.m + 1) * T::kQueries) - 1 - block.keyless_rows;
    return min(last_key, block.first_key + block.keys_left - 1) / T::kKeys - block.number;
  }
};

// Keys that some of a set of rows use, and those that all of them use: as core/mask.h's RowsRange, in 32 bits.
TILEWISE_DEVICE int4 add_ranges(int4 a, int4 b) { return {min(a.x, b.x), max(a.y, b.y), max(a.z, b.z), min(a.w, b.w)}; }
TILEWISE_DEVICE int4 no_range() { return {INT_MAX, 0, 0, INT_MAX}; }

// Of so many rows, a multiple of kFragmentRows.
template <int Rows>
TILEWISE_DEVICE int4 range_of(const int4* from) {
  int4 sum = from[0];
#pragma unroll
  for (int i = 1; i < Rows / kFragmentRows; ++i) sum = add_ranges(sum, from[i]);
  return sum;
}

// All masks that are key intervals: looks at the ranges of 32 blocks of queries at a time, one a lane.
template <class T>
class RangeWalk {
  using Block = KeyBlock<T>;
  const Problem& p_;
  const BackwardWork& work_;
  int highest_ = 0, highest_head_ = -1;  // the block of bit 0; bit i is i blocks before it
  uint32_t live_ = 0, whole_ = 0;

  static TILEWISE_DEVICE int last(const Block& block) { return (block.rows + T::kQueries - 1) / T::kQueries - 1; }

  // Of the sequence.
  TILEWISE_DEVICE const int4* ranges_of(const Block& block, int head) const {
    return work_.ranges + ((keys_differ_by_head(p_) ? head * work_.rows : 0) + block.work_row) / kFragmentRows;
  }

  TILEWISE_DEVICE int4 range(const Block& block, int m, int head) const {
    return range_of<T::kQueries>(ranges_of(block, head) + m * (T::kQueries / kFragmentRows));
  }

  TILEWISE_DEVICE void look(const Block& block, int m, int head) {
    const int mine = m - lane(), first = block.first_key, end = first + T::kKeys;
    const int4 r = mine >= 0 ? range(block, mine, head) : no_range();
    highest_ = m, highest_head_ = head;
    live_ = __ballot_sync(~0u, r.x < end && r.y > first);
    whole_ = __ballot_sync(~0u, r.z <= first && r.w >= end);
  }

  TILEWISE_DEVICE QueryBlock find(const Block& block, int m, int head) {
    for (; head < block.end_head; ++head, m = last(block)) {
      while (m >= 0) {
        if (head != highest_head_ || m <= highest_ - 32) look(block, m, head);
        const uint32_t rest = live_ >> (highest_ - m);
        if (rest != 0) {
          m -= __ffs(int(rest)) - 1;
          return {m, head};
        }
        m = highest_ - 32;
      }
    }
    return {0, block.end_head};
  }

 public:
  static TILEWISE_DEVICE bool goes_up(const Problem&, const BackwardWork&) { return false; }
  TILEWISE_DEVICE RangeWalk(const Problem& p, const BackwardWork& work, const Block&) : p_(p), work_(work) {}

  // `shared`: of the thread block, all threads of which call this.
  TILEWISE_DEVICE UsedKeys used(const Block& block, UsedKeys& shared) const {
    if (threadIdx.x == 0) shared = {INT_MAX, 0};
    __syncthreads();
    const int sixteens = (block.rows + kFragmentRows - 1) / kFragmentRows;
    const int end_head = keys_differ_by_head(p_) ? block.end_head : block.first_head + 1;
    int begin = INT_MAX, end = 0;
    for (int head = block.first_head; head < end_head; ++head) {
      for (int i = threadIdx.x; i < sixteens; i += T::kThreads) {
        const int4 r = ranges_of(block, head)[i];
        begin = min(begin, r.x), end = max(end, r.y);
      }
    }
    atomicMin(&shared.begin, __reduce_min_sync(~0u, begin));
    atomicMax(&shared.end, __reduce_max_sync(~0u, end));
    __syncthreads();
    return {shared.begin - block.first_key, min(block.keys_left, shared.end - block.first_key)};
  }
  TILEWISE_DEVICE QueryBlock first(const Block& block) { return find(block, last(block), block.first_head); }
  TILEWISE_DEVICE QueryBlock after(const Block& block, const QueryBlock& b) { return find(block, b.m - 1, b.head); }
  // Of the block found last.
  TILEWISE_DEVICE bool is_whole(const Block&, const QueryBlock& b) const { return whole_ >> (highest_ - b.m) & 1; }
  TILEWISE_DEVICE int turn(const Block& block, const QueryBlock& b) const {
    return block.number - range(block, b.m, b.head).x / T::kKeys;
  }
};

}  // namespace tilewise::cuda::v2
