// FlashAttention-1, forward: Algorithm 1 of Dao et al. 2022 as it is written. Blocks of K and V in the outer loop,
// blocks of Q in the inner one; O, l and m lie in slow memory, and each visit reads, rescales and writes them.
// Sequences and heads run in parallel, nothing else. Masks leave out blocks without a live pair.
#pragma once

#include "core/kernel.h"
#include "cpu/common/blocks.h"
#include "cpu/common/each_unit.h"
#include "cpu/common/forward_end.h"
#include "cpu/common/score_row.h"

namespace tilewise::cpu::v1 {

template <class Simd>
class Forward {
  using S = Simd;

 public:
  static constexpr Pass kPass = Pass::forward;
  static constexpr Rank kRank = Rank::rung;
  static constexpr Algorithm kAlgorithm = Algorithm::v1;

  static void refuse(const Problem&, Text&) {}

  Forward(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem),
        workers_(settings.workers),
        blocks_(v1_blocks(problem, settings.fast_memory)),
        workspace_(workspace) {
    blocks_ = {lesser(blocks_.rows, greater(1, problem.max_rows)), lesser(blocks_.keys, greater(1, problem.max_keys))};
    s_row_ = round_up(blocks_.keys, S::kTileCols) + S::kLanes;
    own_output_ = problem.out.type != Type::f32 || problem.prior_lse;
    Carver carver{nullptr};
    carve_room(carver);
    room_bytes_ = carver.used;
  }

  Sizing sizing() const {
    return {.query_rows = blocks_.rows,
            .keys = blocks_.keys,
            .workspace_bytes = static_cast<uint64_t>(workers_ * room_bytes_)};
  }

  void run(const Parallel& parallel) const {
    each_unit<S>(parallel, workers_, problem_.batch * problem_.heads, [&](int64_t worker, int64_t unit) {
      Carver carver{workspace_, worker * room_bytes_};
      const Room room = carve_room(carver);
      attend(room, {sequence_of(problem_, unit / problem_.heads), unit % problem_.heads});
    });
  }

 private:
  // One worker's memory.
  struct Room {
    // Slow: what Algorithm 1 keeps in HBM.
    float* output;   // O [rows][Dv], if `out` cannot hold it
    float *l, *m;    // [rows]
    KeyRange* live;  // [rows]
    // Fast.
    float* q;                // Q_i [Br][row_floats]
    KeyBlock k, v;           // K_j in panels, V_j in strips [Bc]
    float* s;                // S_ij, then P~_ij [Br][s_row]
    float* pv;               // P~_ij V_j [Br][row_floats]
    float *tile_m, *tile_l;  // m~, l~ [Br]
  };

  // One head of one sequence.
  struct Head {
    Sequence s;
    int64_t h;
  };

  // Rows and keys that meet.
  struct Tile {
    int64_t first_row, rows, first_key, keys;
  };

  void attend(const Room& room, const Head& head) const {
    const KeyRange hull = start(room, head);  // O = 0, l = 0, m = -inf
    for (int64_t j = hull.lo; j < hull.hi; j += blocks_.keys) {
      const int64_t keys = lesser(blocks_.keys, hull.hi - j);
      load_keys_and_values(room, head, j, keys);  // K_j, V_j
      for (int64_t i = 0; i < head.s.rows; i += blocks_.rows) {
        const Tile tile{i, lesser(blocks_.rows, head.s.rows - i), j, keys};
        if (is_dead(room, tile)) continue;
        load_rows<S>(problem_.q, head.s, head.h, i, tile.rows, room.q);  // Q_i
        scores(room, tile);                                              // S_ij = Q_i K_j^T
        softmax(room, head, tile);                                       // m~, P~ = exp(S - m~), l~
        probs_times_values(room, tile);                                  // P~ V_j
        update_output(room, head, tile);                                 // O_i, l_i, m_i
      }
    }
    finish(room, head);
  }

  KeyRange start(const Room& room, const Head& head) const {
    const float sink = sink_of(problem_, head.h);
    RowsRange all;
    for (int64_t i = 0; i < head.s.rows; ++i) {
      all.add(room.live[i] = live_keys(problem_, head.s, head.h, i));
      std::memset(output_row(room, head, i), 0, problem_.value_dim * sizeof(float));
      // The sink is a key seen before all others, whose value is 0.
      room.m[i] = sink, room.l[i] = sink == -kInfinity ? 0 : 1;
    }
    count_written(head.s.rows * (problem_.value_dim * 4 + 8));
    return all.hull();
  }

  void load_keys_and_values(const Room& room, const Head& head, int64_t first, int64_t keys) const {
    const int64_t h_kv = head.h / problem_.group();
    load_keys<S>(problem_.k, head.s, h_kv, first, keys, room.k);
    load_keys<S>(problem_.v, head.s, h_kv, first, keys, room.v);
  }

  bool is_dead(const Room& room, const Tile& tile) const {
    RowsRange rows;
    for (int64_t i = 0; i < tile.rows; ++i) rows.add(room.live[tile.first_row + i]);
    return rows.dead(tile.first_key, tile.first_key + tile.keys);
  }

  void scores(const Room& room, const Tile& tile) const {
    multiply_transposed<S>(room.q, room.k.panels, problem_.head_dim, tile.rows, tile.keys, room.s, s_row_);
  }

  void softmax(const Room& room, const Head& head, const Tile& tile) const {
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t at = tile.first_row + i;
      const ScoreRow row{problem_, head.s, head.h, at, room.live[at], tile.first_key, tile.keys};
      float* x = room.s + i * s_row_;
      const float top = finish_scores<S>(row, x, nullptr);
      room.tile_m[i] = top == -kInfinity ? 0 : top;
      room.tile_l[i] = exponentials<S>(row, room.tile_m[i], x, x);
      if (has_dropout(problem_)) each_kept<S>(row, [x](int64_t j, float z) { x[j] *= z; });
    }
  }

  void probs_times_values(const Room& room, const Tile& tile) const {
    zero<S>(room.pv, round_up(tile.rows, S::kStripRows) * row_floats<S>(problem_.value_dim));
    add_product<S>(room.s, s_row_, room.v.strips, room.v.stride, problem_.value_dim, tile.rows, tile.keys, room.pv);
  }

  // O_i = (l_i e^(m_i - m_new) O_i + e^(m~ - m_new) P~ V_j) / l_new. A row without a live key in the tile stays.
  void update_output(const Room& room, const Head& head, const Tile& tile) const {
    for (int64_t i = 0; i < tile.rows; ++i) {
      float &l = room.l[tile.first_row + i], &m = room.m[tile.first_row + i];
      if (room.tile_l[i] == 0) continue;
      const float m_new = m > room.tile_m[i] ? m : room.tile_m[i];
      const double old_weight = l * std::exp(static_cast<double>(m) - m_new);
      const double tile_weight = std::exp(static_cast<double>(room.tile_m[i]) - m_new);
      const double l_new = old_weight + tile_weight * room.tile_l[i];
      combine(old_weight / l_new, tile_weight / l_new, room.pv + i * row_floats<S>(problem_.value_dim),
              output_row(room, head, tile.first_row + i));
      l = static_cast<float>(l_new), m = m_new;
    }
    count_read(tile.rows * (problem_.value_dim * 4 + 8));
    count_written(tile.rows * (problem_.value_dim * 4 + 8));
  }

  void combine(double old_weight, double tile_weight, const float* pv, float* output) const {
    const auto a = S::set(static_cast<float>(old_weight)), b = S::set(static_cast<float>(tile_weight));
    each_vector<S>(output, 0, problem_.value_dim,
                   [&](int64_t d, typename S::Vec o) { return S::fma(b, S::load(pv + d), S::mul(a, o)); });
  }

  void finish(const Room& room, const Head& head) const {
    count_read(head.s.rows * 8);
    for (int64_t i = 0; i < head.s.rows; ++i) {
      const double lse = lse_of_sum(room.m[i], room.l[i]);
      if (own_output_) {
        std::memcpy(room.pv, output_row(room, head, i), problem_.value_dim * sizeof(float));
        count_read(problem_.value_dim * 4);
        store_row<S>(problem_, head.s, i, head.h, lse, room.pv);
      } else if (problem_.lse) {
        lse_of(problem_.lse, head.s, i, head.h) = static_cast<float>(lse);
        count_written(4);
      }
    }
  }

  float* output_row(const Room& room, const Head& head, int64_t i) const {
    return own_output_ ? room.output + i * problem_.value_dim : row_of<float>(problem_.out, head.s, i, head.h);
  }

  Room carve_room(Carver& carver) const {
    const int64_t dims = greater(problem_.head_dim, problem_.value_dim), row = row_floats<S>(dims);
    const int64_t rows = round_up(blocks_.rows, S::kTileCols), keys = round_up(blocks_.keys, S::kTileCols);
    Room room;
    room.output = carver.take<float>(own_output_ ? problem_.max_rows * problem_.value_dim : 0);
    room.l = carver.take<float>(problem_.max_rows);
    room.m = carver.take<float>(problem_.max_rows);
    room.live = carver.take<KeyRange>(problem_.max_rows);
    room.q = carver.take<float>(rows * row);
    float* staging = carver.take<float>(S::kTileCols * row);
    room.k = {carver.take<float>(keys / S::kTileCols * panel_floats<S>(problem_.head_dim)), nullptr, keys, staging};
    room.v = {nullptr, carver.take<float>(keys * round_up(problem_.value_dim, S::kStripCols)), keys, staging};
    room.s = carver.take<float>(rows * s_row_);
    room.pv = carver.take<float>(rows * row);
    room.tile_m = carver.take<float>(rows);
    room.tile_l = carver.take<float>(rows);
    return room;
  }

  const Problem& problem_;
  const int64_t workers_;
  Blocks blocks_;
  char* workspace_;
  int64_t s_row_, room_bytes_;
  bool own_output_;  // `out` is not fp32, or the prior may lie in it
};

}  // namespace tilewise::cpu::v1
