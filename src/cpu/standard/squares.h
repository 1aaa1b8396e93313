// The memory of standard attention: for each head at work, squares of rows x keys in the workspace (S and P, dP and
// dS), and the products that write and read them. Squares are large, so as many heads are at work at once as fit in
// kBytesAtOnce, at least one; all workers share their rows.
#pragma once

#include "cpu/common/gradient_row.h"
#include "traffic/blocks.h"

namespace tilewise::cpu::standard {

inline constexpr int64_t kBytesAtOnce = int64_t{64} << 20;

// A head at work. Column j of a square is key keys.lo + j.
struct Head {
  Sequence s;
  int64_t h, h_kv;
  KeyRange keys;              // hull of the keys that are live for some row of the heads of h_kv
  float *scores, *gradients;  // [rows][Squares::row]  S, then P;  dP, then dS
  float* slopes;              // [rows][Squares::row]  derivative of softcap
  float *max, *sum;           // [rows]  m, l
  float* lse;                 // [rows]  backward; -inf: P is 0
  float *dkeys, *dvalues;     // [keys][D], [keys][Dv] in panels: sums over the group's heads so far

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
  static_assert(S::kTileCols % S::kTileRows == 0 && S::kTileCols % S::kStripRows == 0, "blocks are whole tiles");

 public:
  Squares(const Problem& problem, const Settings& settings, Carver carver)
      : problem_(problem), workers_(settings.workers), blocks_(standard_blocks(problem, settings.fast_memory)) {
    const int64_t rows = round_up(greater(1, problem.max_rows), S::kTileCols);
    const int64_t keys = round_up(greater(1, problem.max_keys), S::kTileCols);
    row_ = (ceil_div(keys, kLine) | 1) * kLine;
    square_ = rows * row_;
    blocks_ = {lesser(blocks_.rows, rows), lesser(blocks_.keys, keys)};
    rooms_ = carver;
    for (int64_t worker = 0; worker < workers_; ++worker) carve_room(carver);
    heads_ = carver;
    Carver one{nullptr};
    carve_head(one);
    head_bytes_ = one.used;
    const int64_t all = problem.batch * problem.heads, group = problem.heads / problem.heads_kv;
    const int64_t bytes = lesser(all * head_bytes_, greater(head_bytes_, kBytesAtOnce));
    at_once_ = bytes / head_bytes_;
    at_once_ = at_once_ >= group ? round_down(at_once_, group) : 1;
    workspace_bytes_ = carver.used + bytes;
  }

  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t row() const { return row_; }

  // The next few heads, with room for their squares; false after the last.
  bool next_heads() {
    first_head_ += count_;
    count_ = lesser(at_once_, problem_.batch * problem_.heads - first_head_);
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
    const int64_t heads = lesser(problem_.heads / problem_.heads_kv, at_once_);
    each_unit<S>(parallel, workers_, count_ / heads * blocks, [&](int64_t worker, int64_t unit) {
      const int64_t n = unit / blocks * heads, from = unit % blocks * blocks_.keys;
      const KeyRange hull = head_at(n).keys;
      const KeyRange keys{hull.lo + from, lesser(hull.lo + from + blocks_.keys, hull.hi)};
      if (!keys.empty() || from == 0) (call.*step)({n, heads, room(worker), keys});
    });
  }

  int64_t heads() const { return count_; }
  const Head& head_at(int64_t n) const {
    return *reinterpret_cast<const Head*>(heads_.base + heads_.used + n * head_bytes_);
  }

  // square[rows of the block][keys] = A B^T, block by block of keys: S = Q K^T, dP = dO V^T.
  void fill(const RowBlock& block, const Tensor& a, const Tensor& b, float* square) const {
    const auto& [head, room, first, count] = block;
    load_rows<S>(a, head.s, head.h, first, count, room.rows);
    for (int64_t key = head.keys.lo; key < head.keys.hi; key += blocks_.keys) {
      const int64_t keys = lesser(blocks_.keys, head.keys.hi - key);
      load_keys<S>(b, head.s, head.h_kv, key, keys, {room.keys.panels, nullptr, 0, room.keys.staging});
      multiply_transposed<S>(room.rows, room.keys.panels, b.shape[3], count, keys,
                             square + first * row_ + key - head.keys.lo, row_);
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
      add_product<S>(square + first * row_ + key - head.keys.lo, row_, room.keys.strips, room.keys.stride, b.shape[3],
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
      add_transposed<S>(square + first * row_ + keys.lo - head.keys.lo, row_, room.rows, a.shape[3], count,
                        keys.hi - keys.lo, room.sum);
      count_read(count * (keys.hi - keys.lo) * 4);
    }
  }

 private:
  static constexpr int64_t kLine = 16;  // floats of a cache line; an odd number of lines a row uses all cache sets

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

  Head carve_head(Carver& carver) const {
    const bool backward = problem_.pass == Pass::backward;
    const int64_t panels = ceil_div(greater(1, problem_.max_keys), S::kTileCols);
    carver.take<Head>(1);
    Head head{};
    head.scores = carver.take<float>(square_);
    head.gradients = carver.take<float>(backward ? square_ : 0);
    head.slopes = carver.take<float>(backward && has_softcap(problem_) ? square_ : 0);
    head.max = carver.take<float>(backward ? 0 : problem_.max_rows);
    head.sum = carver.take<float>(backward ? 0 : problem_.max_rows);
    head.lse = carver.take<float>(backward ? problem_.max_rows : 0);
    head.dkeys = carver.take<float>(problem_.dk ? panels * panel_floats<S>(problem_.head_dim) : 0);
    head.dvalues = carver.take<float>(problem_.dv ? panels * panel_floats<S>(problem_.value_dim) : 0);
    return head;
  }

  void begin_head(int64_t n) {
    Carver carver{heads_.base, heads_.used + n * head_bytes_};
    Head& head = *reinterpret_cast<Head*>(carver.base + carver.used);
    const int64_t group = problem_.heads / problem_.heads_kv;
    const bool by_head = problem_.key_begin || problem_.key_end;
    const Head places = carve_head(carver);
    head = places;
    head.s = sequence_of(problem_, (first_head_ + n) / problem_.heads);
    head.h = (first_head_ + n) % problem_.heads, head.h_kv = head.h / group;
    RowsRange all;
    for (int64_t h = head.h_kv * group; h < head.h_kv * group + (by_head ? group : 1); ++h)
      for (int64_t i = 0; i < head.s.rows; ++i) all.add(live_keys(problem_, head.s, h, i));
    head.keys = all.any.empty() ? KeyRange{} : all.any;
  }

  const Problem& problem_;
  const int64_t workers_;
  Blocks blocks_;
  int64_t row_, square_;  // floats
  Carver rooms_{nullptr}, heads_{nullptr};
  int64_t head_bytes_, at_once_, workspace_bytes_;
  int64_t first_head_ = 0, count_ = 0;  // at work
};

}  // namespace tilewise::cpu::standard
