// The squares of standard attention: rows x keys in the workspace for each head at work (S and P, dP and dS), and the
// products that write and read them. All workers share the rows of these heads.
#pragma once

#include "core/kernel.h"
#include "cpu/common/blocks.h"
#include "cpu/common/gradient_row.h"

namespace tilewise::cpu::standard {

// Squares whose bytes can be counted; the allocator judges those that it cannot give.
inline constexpr int64_t kMostPairs = int64_t{1} << 56;

// A head at work. Column j of a square is key keys.lo + j.
struct Head {
  Sequence s;
  int64_t h, h_kv;
  KeyRange keys;           // hull of the keys that are live for some row of the heads of h_kv
  float *scores, *probs;   // [rows][StandardMemory::row]  S, P; of a backward one square
  float* gradients;        // [rows][StandardMemory::row]  dP, then dS
  float* slopes;           // [rows][StandardMemory::row]  derivative of softcap
  float *max, *sum;        // [rows]  m, l of a forward
  float* lse;              // [rows]  of a backward; -inf: P is 0
  float *dkeys, *dvalues;  // [keys][D], [keys][Dv] in panels: sums over the group's heads so far

  [[gnu::always_inline]] int64_t keys_used() const { return keys.hi - keys.lo; }
};

// A worker's blocks.
struct Room {
  float* rows;    // [Br][row_floats]  of Q or dO
  KeyBlock keys;  // [Bc]
  float* sum;     // rows of O or dQ, panels of dK or dV
  float* row[2];  // [row_floats]
};

// Rows [first, first + count) of a head, in a worker's hands.
struct RowBlock {
  const Head& head;
  const Room room;
  int64_t first, count;
};

// Keys of the heads [first_head, first_head + heads) at work, all those of one group or one of them.
struct GroupKeys {
  int64_t first_head, heads;
  const Room room;
  KeyRange keys;
};

template <class Simd>
class Squares {
  using S = Simd;
  static_assert(kWholeTiles % S::kTileCols == 0 && kWholeTiles % S::kTileRows == 0 && kWholeTiles % S::kStripRows == 0);

 public:
  static void refuse(const Problem& problem, Text& reason) {
    if (problem.max_rows > 0 && problem.max_keys > kMostPairs / problem.max_rows)
      reason.format("scores of %lld x %lld cannot be held in memory", ll(problem.max_rows), ll(problem.max_keys));
  }

  Squares(const Problem& problem, const Settings& settings, Carver carver)
      : problem_(problem),
        workers_(settings.workers),
        memory_(standard_memory(problem)),
        blocks_(standard_blocks(problem, settings.fast_memory)) {
    const int64_t keys = round_up(greater(1, problem.max_keys), kWholeTiles);
    blocks_ = {lesser(blocks_.rows, memory_.rows), lesser(blocks_.keys, keys)};
    heads_ = carver.take<char>(memory_.bytes);
    rooms_ = carver;
    for (int64_t worker = 0; worker < workers_; ++worker) carve_room(carver);
    workspace_bytes_ = carver.used;
  }

  Sizing sizing() const {
    return {
        .query_rows = blocks_.rows, .keys = blocks_.keys, .workspace_bytes = static_cast<uint64_t>(workspace_bytes_)};
  }
  int64_t row() const { return memory_.row; }

  // The next few heads, with room for their squares; false after the last.
  bool next_heads() {
    first_head_ += count_;
    count_ = lesser(memory_.heads, problem_.batch * problem_.heads - first_head_);
    for (int64_t n = 0; n < count_; ++n) begin_head(n);
    return count_ > 0;
  }

  // (call.*step)(RowBlock) for all rows of these heads.
  template <class Call>
  void each_row_block(const Parallel& parallel, const Call& call, void (Call::*step)(const RowBlock&) const) const {
    const int64_t blocks = ceil_div(problem_.max_rows, blocks_.rows);
    each_unit<S>(parallel, workers_, count_ * blocks, [&](int64_t worker, int64_t unit) {
      const int64_t first = unit % blocks * blocks_.rows;
      const Head& head = head_at(unit / blocks);
      if (first >= head.s.rows) return;
      (call.*step)({head, room(worker), first, lesser(blocks_.rows, head.s.rows - first)});
    });
  }

  // step(ScoreRow) for each row of the block.
  template <class Step>
  void each_row(const RowBlock& block, Step step) const {
    for (int64_t i = block.first; i < block.first + block.count; ++i) step(row_at(block.head, i));
  }

  ScoreRow row_at(const Head& head, int64_t i) const {
    return {problem_, head.s, head.h, i, live_keys(problem_, head.s, head.h, i), head.keys.lo, head.keys_used()};
  }

  // (call.*step)(GroupKeys) for all keys that these heads use; once with an empty block where they use none.
  template <class Call>
  void each_key_block(const Parallel& parallel, const Call& call, void (Call::*step)(const GroupKeys&) const) const {
    const int64_t blocks = greater(1, ceil_div(problem_.max_keys, blocks_.keys));
    const int64_t heads = lesser(problem_.group(), memory_.heads);
    each_unit<S>(parallel, workers_, count_ / heads * blocks, [&](int64_t worker, int64_t unit) {
      const int64_t n = unit / blocks * heads, from = unit % blocks * blocks_.keys;
      const KeyRange hull = head_at(n).keys;
      const KeyRange keys{hull.lo + from, lesser(hull.lo + from + blocks_.keys, hull.hi)};
      if (!keys.empty() || from == 0) (call.*step)({n, heads, room(worker), keys});
    });
  }

  int64_t heads() const { return count_; }
  const Head& head_at(int64_t n) const { return *reinterpret_cast<const Head*>(heads_ + n * memory_.head_bytes); }

  // square[rows of the block][keys] = A B^T, block by block of keys: S = Q K^T, dP = dO V^T.
  void fill(const RowBlock& block, const Tensor& a, const Tensor& b, float* square) const {
    const auto& [head, room, first, count] = block;
    load_rows<S>(a, head.s, head.h, first, count, room.rows);
    for (int64_t key = head.keys.lo; key < head.keys.hi; key += blocks_.keys) {
      const int64_t keys = lesser(blocks_.keys, head.keys.hi - key);
      load_keys<S>(b, head.s, head.h_kv, key, keys, {room.keys.panels, nullptr, 0, room.keys.staging});
      multiply_transposed<S>(room.rows, room.keys.panels, b.shape[3], count, keys,
                             square + first * row() + key - head.keys.lo, row());
      count_written(count * keys * 4);
    }
  }

  // sum[rows of the block][dims] = square B: O = P V, dQ = dS K.
  void multiply(const RowBlock& block, const float* square, const Tensor& b) const {
    const auto& [head, room, first, count] = block;
    zero<S>(room.sum, round_up(count, S::kTileCols) * row_floats<S>(b.shape[3]));
    for (int64_t key = head.keys.lo; key < head.keys.hi; key += blocks_.keys) {
      const int64_t keys = lesser(blocks_.keys, head.keys.hi - key);
      load_keys<S>(b, head.s, head.h_kv, key, keys, {nullptr, room.keys.strips, room.keys.stride, room.keys.staging});
      add_product<S>(square + first * row() + key - head.keys.lo, row(), room.keys.strips, room.keys.stride, b.shape[3],
                     count, keys, room.sum);
      count_read(count * keys * 4);
    }
  }

  // sum[keys][dims] in panels += square^T A over the rows of a head: dV = P^T dO, dK = dS^T Q. A row whose P is 0
  // counts as zeros, whatever it holds.
  void add_columns(const Room& room, const Head& head, KeyRange keys, const float* square, const Tensor& a) const {
    const int64_t a_row = row_floats<S>(a.shape[3]);
    for (int64_t first = 0; first < head.s.rows; first += blocks_.rows) {
      const int64_t count = lesser(blocks_.rows, head.s.rows - first);
      load_rows<S>(a, head.s, head.h, first, count, room.rows);
      for (int64_t i = 0; i < count; ++i)
        if (head.lse[first + i] == -kInfinity) zero<S>(room.rows + i * a_row, a_row);
      add_transposed<S>(square + first * row() + keys.lo - head.keys.lo, row(), room.rows, a.shape[3], count,
                        keys.hi - keys.lo, room.sum);
      count_read(count * (keys.hi - keys.lo) * 4);
    }
  }

 private:
  Room room(int64_t worker) const {
    Carver carver = rooms_;
    Room room = carve_room(carver);
    if (worker == 0) return room;
    carver.used = rooms_.used + worker * (carver.used - rooms_.used);
    return carve_room(carver);
  }

  Room carve_room(Carver& carver) const {
    const int64_t dims = greater(problem_.head_dim, problem_.value_dim), row = row_floats<S>(dims);
    const int64_t panels = ceil_div(blocks_.keys, S::kTileCols) * panel_floats<S>(dims);
    Room room;
    room.rows = carver.take<float>(blocks_.rows * row);
    room.keys.panels = carver.take<float>(panels);
    room.keys.strips = carver.take<float>(blocks_.keys * round_up(dims, S::kStripCols));
    room.keys.stride = blocks_.keys;
    room.keys.staging = carver.take<float>(S::kTileCols * row);
    room.sum = carver.take<float>(greater(blocks_.rows * row, panels));
    for (float*& one : room.row) one = carver.take<float>(row);
    return room;
  }

  void begin_head(int64_t n) {
    static_assert(sizeof(Head) <= kHeadBytes);
    const bool backward = problem_.pass == Pass::backward;
    Carver carver{heads_, n * memory_.head_bytes + kHeadBytes};
    Head& head = *reinterpret_cast<Head*>(heads_ + n * memory_.head_bytes);
    const int64_t square = memory_.rows * memory_.row;
    head.scores = carver.take<float>(square);
    head.probs = backward ? head.scores : carver.take<float>(square);
    head.gradients = carver.take<float>(backward ? square : 0);
    head.slopes = carver.take<float>(backward && has_softcap(problem_) ? square : 0);
    head.max = head.lse = carver.take<float>(memory_.rows);
    head.sum = carver.take<float>(memory_.rows);
    head.dkeys = carver.take<float>(memory_.dk_sums);
    head.dvalues = carver.take<float>(memory_.dv_sums);
    find_keys(n, head);
  }

  void find_keys(int64_t n, Head& head) const {
    const int64_t group = problem_.group();
    const bool by_head = keys_differ_by_head(problem_);
    head.s = sequence_of(problem_, (first_head_ + n) / problem_.heads);
    head.h = (first_head_ + n) % problem_.heads, head.h_kv = head.h / group;
    RowsRange all;
    for (int64_t h = head.h_kv * group; h < head.h_kv * group + (by_head ? group : 1); ++h)
      for (int64_t i = 0; i < head.s.rows; ++i) all.add(live_keys(problem_, head.s, h, i));
    head.keys = all.hull();
  }

  const Problem& problem_;
  const int64_t workers_;
  const StandardMemory memory_;
  Blocks blocks_;
  char* heads_;  // [memory_.heads][memory_.head_bytes]
  Carver rooms_{nullptr};
  int64_t workspace_bytes_;
  int64_t first_head_ = 0, count_ = 0;  // at work
};

}  // namespace tilewise::cpu::standard
