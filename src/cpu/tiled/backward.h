// FlashAttention backward on a CPU, written once in terms of Simd's traits. Five products a pair of blocks:
//
//   P^T, dS^T                                              two: see backward_pairs.h
//   dQ^T += K^T dS^T                                       queries in the lanes
//   dV += P^T dO            dK += dS^T Q                   dims in the lanes
//
// One unit of work is a chunk of keys of one (sequence, kv head). It owns dK and dV of its keys and goes through the
// query blocks from the last to the first, all heads of the group in each, so their sum has one fixed order. dQ of a
// query block is the sum over chunks: each chunk adds its part when its ticket comes up, in ascending order. A chunk
// waits only for chunks drawn before it, and with any causal or window mask those reach the shared query blocks first.
// The chunk size does not depend on the number of workers, so neither do the bits.
#pragma once

#include <sched.h>

#include <atomic>

#include "cpu/tiled/backward_pairs.h"

namespace tilewise::cpu {

using Ticket = std::atomic<int32_t>;

// What all workers see.
struct BackwardShared {
  int64_t chunk_keys;  // keys of a unit
  int64_t blocks;      // query blocks of a kv head, over all sequences
  Ticket* tickets;     // [heads_kv][blocks] chunks that have added their dQ
  float* dquery_sum;   // [total_rows][heads][head_dim] for 16-bit dQ; fp32 sums in dQ itself
};

template <class Simd>
class BackwardWorker {
  using S = Simd;
  static constexpr int kRows = S::kTileRows, kCols = S::kTileCols;
  static constexpr int kStripRows = S::kStripRows, kStrip = S::kStripCols;
  static constexpr int64_t kPairRow = PairBlock<S>::kPairRow;

 public:
  BackwardWorker(const Problem& problem, const BackwardShared& shared, int64_t most_keys, Carver& carve)
      : problem_(problem),
        shared_(shared),
        group_(problem.group()),
        wants_dscores_(problem.dq || problem.dk),
        query_strips_(round_up(problem.head_dim, kStrip)),
        value_strips_(round_up(problem.value_dim, kStrip)),
        queries_(problem, wants_dscores_, carve),
        keys_(problem, most_keys, carve),
        pairs_(problem, queries_, keys_, ScoreGradient::product, carve) {
    dquery_t_ = carve.take<float>(kBlockRows<S> / kCols * queries_.query_panel);
    dkey_ = carve.take<float>((most_keys + kStripRows) * query_strips_);
    dvalue_ = carve.take<float>((most_keys + kStripRows) * value_strips_);
    rows_ = carve.take<float>(kCols * greater(queries_.query_row, queries_.value_row));
  }

  // One unit: a chunk of the keys of kv head h.
  void run(const Sequence& sequence, int64_t h, int64_t chunk) {
    start(sequence, h, chunk);
    const int64_t rows = sequence.rows * group_, step = kBlockRows<S>;
    for (int64_t block = ceil_div(rows, step) - 1; block >= 0; --block) {
      const KeyRange any = queries_.find_live_keys(block * step, lesser(step, rows - block * step));
      const KeyRange live{greater(any.lo, chunk_.lo), lesser(any.hi, chunk_.hi)};
      if (any.empty() && chunk == 0) clear_dquery();
      if (live.empty()) continue;
      add_block(live);
      if (problem_.dq) hand_in_dquery(block, chunk - any.lo / shared_.chunk_keys, chunk_.hi >= any.hi);
    }
    store_dkey_and_dvalue();
  }

 private:
  void start(const Sequence& sequence, int64_t h, int64_t chunk) {
    const int64_t first = chunk * shared_.chunk_keys;
    sequence_ = sequence, h_ = h, chunk_ = {first, lesser(first + shared_.chunk_keys, sequence.keys)};
    queries_.set_sequence(sequence, h * group_, group_);
    keys_.start(sequence, h, chunk_);
    const int64_t rows = greater(0, chunk_.hi - chunk_.lo) + kStripRows;
    if (problem_.dk) zero<S>(dkey_, rows * query_strips_);
    if (problem_.dv) zero<S>(dvalue_, rows * value_strips_);
  }

  // All keys of the chunk that are live for some row of the query block.
  void add_block(KeyRange live) {
    queries_.load();
    keys_.load(live);
    if (problem_.dq) zero<S>(dquery_t_, queries_.panels * queries_.query_panel);
    for (int64_t key = live.lo; key < live.hi; key += kBlockKeys) {
      pairs_.set_keys(key, lesser(kBlockKeys, live.hi - key));
      for (int64_t panel = 0; panel < queries_.panels; ++panel) {
        pairs_.compute(panel, wants_dscores_);  // P^T = exp(scale K Q^T - LSE), dS^T = P^T (V dO^T - delta + dLSE)
        if (problem_.dq) add_dquery(panel);     // dQ^T += K^T dS^T
      }
      find_strip_rows();
      if (problem_.dv) add_dvalue();  // dV += P^T dO
      if (problem_.dk) add_dkey();    // dK += dS^T Q
    }
  }

  void add_dquery(int64_t panel) {
    const KeyRange keys = pairs_.panel_keys[panel];
    if (keys.empty()) return;
    float* dquery = dquery_t_ + panel * queries_.query_panel;
    const float* key_rows = keys_.key_row(pairs_.first_key + keys.lo);
    const float* dscores = pairs_.dscores_t + keys.lo * kPairRow + panel * kCols;
    for (int64_t d = 0; d < problem_.head_dim; d += kRows)
      S::product(dquery + d * kCols, kCols, dquery + d * kCols, kCols, key_rows + d, 1, keys_.query_row, dscores,
                 kPairRow, keys.hi - keys.lo);
  }

  void add_dvalue() { add_strips(dvalue_, value_strips_, pairs_.probs_t, queries_.doutput_rows, queries_.value_row); }
  void add_dkey() { add_strips(dkey_, query_strips_, pairs_.dscores_t, queries_.query_rows, queries_.query_row); }

  // The rows that any key of a strip is live for, in fours; pairs with all others are zeros.
  void find_strip_rows() {
    for (int64_t strip = 0; strip * kStripRows < pairs_.count; ++strip) {
      const int64_t key = pairs_.first_key + strip * kStripRows, end = key + kStripRows;
      const auto dead_panel = [&](int64_t r) { return queries_.panel_live[r / kCols].dead(key, end); };
      const auto dead_row = [&](int64_t r) { return queries_.live[r].hi <= key || queries_.live[r].lo >= end; };
      int64_t from = 0, to = queries_.panels * kCols;
      while (from < to && dead_panel(from)) from += kCols;
      while (from < to && dead_panel(to - 1)) to -= kCols;
      while (from < to && dead_row(from)) ++from;
      while (from < to && dead_row(to - 1)) --to;
      strip_rows_[strip] = {round_down(from, 4), round_up(to, 4)};
    }
  }

  // sum[key][dims] += pairs^T[key][queries] rows[queries][dims], strip by strip of dims: that of the rows stays in L1.
  void add_strips(float* sum, int64_t dims, const float* pairs_t, const float* rows, int64_t row) {
    float* block = sum + (pairs_.first_key - chunk_.lo) * dims;
    for (int64_t d = 0; d < dims; d += kStrip)
      for (int64_t key = 0; key < pairs_.count; key += kStripRows) {
        const auto [from, to] = strip_rows_[key / kStripRows];
        prefetch_tile(block + (key + kStripRows) * dims + d, dims);
        if (from < to)
          S::strip_product(block + key * dims + d, dims, pairs_t + key * kPairRow + from, kPairRow,
                           rows + from * row + d, row, to - from);
      }
  }

  // The sums of the next tile: those of a long chunk are not in L2, and a tile reads them last, all at once.
  static void prefetch_tile(const float* sum, int64_t row) {
    for (int r = 0; r < kStripRows; ++r)
      for (int v = 0; v < kStrip; v += 16) __builtin_prefetch(sum + r * row + v, 1);
  }

  // ---- dQ: the parts of all chunks that a query block meets, summed in ascending order.

  // Where the sums of a row are kept from chunk to chunk.
  float* dquery_sum(int64_t r) const {
    if (problem_.dq.type == Type::f32)
      return row_of<float>(problem_.dq, sequence_, queries_.token(r), queries_.head(r));
    return shared_.dquery_sum +
           (row_in_call(queries_.token(r)) * problem_.heads + queries_.head(r)) * problem_.head_dim;
  }

  int64_t row_in_call(int64_t token) const {
    return sequence_.q_slot * problem_.q.shape[1] + sequence_.first_row + token;
  }

  // A sequence has at most one block more than its share of the rows of all.
  Ticket& ticket(int64_t block) const {
    const int64_t first = row_in_call(0) * group_ / kBlockRows<S> + sequence_.index;
    return shared_.tickets[h_ * shared_.blocks + first + block];
  }

  // Adds this chunk's dQ to that of the chunks before it, when it is this chunk's turn.
  void hand_in_dquery(int64_t block, int64_t turn, bool last) {
    Ticket& turns = ticket(block);
    for (int spins = 0; turns.load(std::memory_order_acquire) != turn; ++spins)
      if (spins > 1000) sched_yield();
    float scale[kCols];
    for (float& factor : scale) factor = problem_.softmax_scale;
    for (int64_t panel = 0; panel < queries_.panels; ++panel) {
      const int64_t first = panel * kCols, end = lesser(first + kCols, queries_.count);
      for (int64_t r = first; r < end; ++r)
        prefetch_row_of(problem_.dq, queries_.offset(problem_.dq, r), problem_.head_dim);
      panel_to_rows<S>(dquery_t_ + panel * queries_.query_panel, scale, problem_.head_dim, rows_, queries_.query_row);
      for (int64_t r = first; r < end; ++r)
        add_dquery_row(r, rows_ + (r - first) * queries_.query_row, turn == 0, last);
    }
    turns.store(static_cast<int32_t>(turn + 1), std::memory_order_release);
  }

  void add_dquery_row(int64_t r, float* part, bool first, bool last) {
    if (queries_.live[r].empty()) zero<S>(part, problem_.head_dim);  // 0 * NaN of a K that other rows use is NaN
    float* sum = dquery_sum(r);
    if (!first || problem_.accumulate) add_row(sum, problem_.head_dim, part);
    if (last) {
      write_row_of(part, problem_.dq, row_offset(problem_.dq, sequence_, queries_.token(r), queries_.head(r)));
    } else {
      write_row<S>(part, problem_.head_dim, 1, sum);
    }
  }

  // Of rows without a live key.
  void clear_dquery() {
    if (!problem_.dq || problem_.accumulate) return;
    zero<S>(rows_, queries_.query_row);
    for (int64_t r = 0; r < queries_.count; ++r)
      write_row_of(rows_, problem_.dq, row_offset(problem_.dq, sequence_, queries_.token(r), queries_.head(r)));
  }

  // ---- dK, dV

  void store_dkey_and_dvalue() {
    for (int64_t key = chunk_.lo; key < chunk_.hi; ++key) {
      store_key(key, dkey_ + (key - chunk_.lo) * query_strips_, problem_.softmax_scale, problem_.dk);
      store_key(key, dvalue_ + (key - chunk_.lo) * value_strips_, 1, problem_.dv);
    }
  }

  void store_key(int64_t key, const float* sum, float scale, const Tensor& t) {
    if (!t) return;
    prefetch_row_of(t, key_offset(t, sequence_, lesser(key + kPrefetchRows, chunk_.hi - 1), h_), t.shape[3]);
    const bool used = key >= keys_.used.lo && key < keys_.used.hi;
    const int64_t offset = key_offset(t, sequence_, key, h_), dims = t.shape[3];
    if (used) {
      write_row<S>(sum, dims, scale, rows_);
    } else {
      zero<S>(rows_, dims);
    }
    if (problem_.accumulate) add_row(element_at<float>(t, offset), dims, rows_);
    write_row_of(rows_, t, offset);
  }

  // ---- Rows of memory

  // to[0..count) += from[0..count); reads `to` in whole vectors.
  static void add_row(const float* from, int64_t count, float* to) {
    int64_t i = 0;
    for (; i + S::kLanes <= count; i += S::kLanes) S::store(to + i, S::add(S::load(to + i), S::load(from + i)));
    if (i < count) S::store(to + i, S::add(S::load(to + i), S::load_first(from + i, count - i)));
  }

  static void write_row_of(const float* from, const Tensor& t, int64_t offset) {
    with_element(t.type,
                 [&](auto element) { write_row<S>(from, t.shape[3], 1, element_at<decltype(element)>(t, offset)); });
  }

  const Problem& problem_;
  const BackwardShared& shared_;
  const int64_t group_;  // query heads of a kv head
  const bool wants_dscores_;
  const int64_t query_strips_, value_strips_;  // head_dim, value_dim in whole strips: rows of dK, dV

  QueryBlock<S> queries_;
  KeyChunk<S> keys_;
  PairBlock<S> pairs_;
  float* dquery_t_;        // [panels][head_dim][kCols]
  float *dkey_, *dvalue_;  // [chunk_keys][query_strips_], [chunk_keys][value_strips_]
  float* rows_;            // [kCols][query_row] on the way to memory

  KeyRange strip_rows_[kBlockKeys / kStripRows];

  // ---- This unit.
  Sequence sequence_;
  int64_t h_;
  KeyRange chunk_;
};

}  // namespace tilewise::cpu
