// FlashAttention-1, backward: Algorithm 4 of Dao et al. 2022. Blocks of K and V in the outer loop, which own dK_j and
// dV_j; blocks of Q in the inner one; each visit reads Q_i, O_i, dO_i, l_i and m_i, and reads, adds to and writes dQ_i
// in slow memory. LSE = m + log l stands for the pair (m, l): P = diag(l)^-1 exp(S - m) = exp(S - LSE). The heads of a
// group follow each other in the inner loop, so that dK_j and dV_j are their sums.
#pragma once

#include "core/kernel.h"
#include "cpu/common/blocks.h"
#include "cpu/common/gradient_row.h"

namespace tilewise::cpu::v1 {

// Several pairs add to one element of the bias.
[[gnu::always_inline]] static inline bool repeats(const Tensor& bias, const Problem& problem) {
  const int64_t whole[4] = {problem.batch, problem.heads, problem.max_rows, problem.max_keys};
  for (int axis = 0; axis < 4; ++axis)
    if (bias.shape[axis] == 1 && whole[axis] > 1) return true;
  return false;
}

template <class Simd>
class Backward {
  using S = Simd;

 public:
  static constexpr Pass kPass = Pass::backward;
  static constexpr Rank kRank = Rank::rung;
  static constexpr Algorithm kAlgorithm = Algorithm::v1;

  static void refuse(const Problem& problem, Text& reason) {
    if (problem.dbias && problem.dbias.type != Type::f32 && repeats(problem.dbias, problem))
      reason.format("dbias of a repeated bias must be fp32: it is summed in place");
  }

  Backward(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem),
        workers_(settings.workers),
        blocks_(v1_blocks(problem, settings.fast_memory)),
        workspace_(workspace) {
    blocks_ = {lesser(blocks_.rows, greater(1, problem.max_rows)), lesser(blocks_.keys, greater(1, problem.max_keys))};
    s_row_ = round_up(blocks_.keys, S::kTileCols) + S::kLanes;
    group_ = problem.group();
    own_dq_ = problem.dq && problem.dq.type != Type::f32;
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
    if (problem_.dbias) clear_dbias<S>(problem_.dbias);
    // Units that add to the same elements of dbias go one after another, in order.
    const int64_t workers = shares_dbias() ? 1 : workers_;
    each_unit<S>(parallel, workers, problem_.batch * problem_.heads_kv, [&](int64_t worker, int64_t unit) {
      Carver carver{workspace_, worker * room_bytes_};
      const Room room = carve_room(carver);
      attend(room, {sequence_of(problem_, unit / problem_.heads_kv), unit % problem_.heads_kv});
    });
    sink_gradient(problem_, static_cast<int>(workers_), parallel);
  }

 private:
  // One worker's memory.
  struct Room {
    // Slow.
    float* dq;       // [G][rows][D], if `dq` cannot hold the sums
    KeyRange* live;  // [G][rows]
    // Fast. Blocks of rows [Br][row_floats], of keys [Bc].
    float *q, *dout, *out;
    KeyBlock k, v;   // K_j in panels and strips, V_j in panels
    float *p, *ds;   // S_ij, then P_ij; dP_ij, then dS_ij [Br][s_row]
    float* slopes;   // derivative of softcap [Br][s_row]
    float* dq_tile;  // dS_ij K_j [Br][row_floats]
    float *dk, *dv;  // dK_j, dV_j in panels
  };

  // One key head of one sequence.
  struct Head {
    Sequence s;
    int64_t h_kv;
  };

  // Rows of query head `h`, the g-th of its group, and keys.
  struct Tile {
    int64_t h, g, first_row, rows, first_key, keys;
  };

  void attend(const Room& room, const Head& head) const {
    const KeyRange hull = start(room, head);  // dQ = 0
    for (int64_t j = hull.lo; j < hull.hi; j += blocks_.keys) {
      const int64_t keys = lesser(blocks_.keys, hull.hi - j);
      load_keys_and_values(room, head, j, keys);  // K_j, V_j; dK_j = dV_j = 0
      for (int64_t g = 0; g < group_; ++g)
        for (int64_t i = 0; i < head.s.rows; i += blocks_.rows)
          visit(room, head, {head.h_kv * group_ + g, g, i, lesser(blocks_.rows, head.s.rows - i), j, keys});
      store_keys(room, head, problem_.dk, room.dk, problem_.softmax_scale, j, keys);
      store_keys(room, head, problem_.dv, room.dv, 1, j, keys);
    }
    finish(room, head, hull);
  }

  void visit(const Room& room, const Head& head, const Tile& tile) const {
    if (is_dead(room, head, tile)) return;
    load_queries(room, head, tile);   // Q_i, O_i, dO_i
    scores(room, tile);               // S_ij = Q_i K_j^T, dP_ij = dO_i V_j^T
    probabilities(room, head, tile);  // P_ij = exp(S_ij - LSE_i)
    gradients(room, head, tile);      // D_i = rowsum(dO_i O_i), dS_ij = P_ij (dP_ij - D_i)
    if (problem_.dv) add_transposed<S>(room.p, s_row_, room.dout, problem_.value_dim, tile.rows, tile.keys, room.dv);
    if (problem_.dbias) add_dbias(room, head, tile);
    if (has_softcap(problem_)) through_softcap(room, head, tile);
    if (problem_.dq) add_dq(room, head, tile);  // dQ_i += scale dS_ij K_j
    if (problem_.dk) add_transposed<S>(room.ds, s_row_, room.q, problem_.head_dim, tile.rows, tile.keys, room.dk);
  }

  KeyRange start(const Room& room, const Head& head) const {
    RowsRange all;
    for (int64_t g = 0; g < group_; ++g)
      for (int64_t i = 0; i < head.s.rows; ++i) {
        all.add(room.live[g * head.s.rows + i] = live_keys(problem_, head.s, head.h_kv * group_ + g, i));
        if (!problem_.dq || problem_.accumulate) continue;
        std::memset(dq_row(room, head, g, i), 0, problem_.head_dim * sizeof(float));
        count_written(problem_.head_dim * 4);
      }
    return all.hull();
  }

  void load_keys_and_values(const Room& room, const Head& head, int64_t first, int64_t keys) const {
    load_keys<S>(problem_.k, head.s, head.h_kv, first, keys, room.k);
    load_keys<S>(problem_.v, head.s, head.h_kv, first, keys, room.v);
    zero<S>(room.dk, panels_of(keys) * panel_floats<S>(problem_.head_dim));
    zero<S>(room.dv, panels_of(keys) * panel_floats<S>(problem_.value_dim));
  }

  bool is_dead(const Room& room, const Head& head, const Tile& tile) const {
    RowsRange rows;
    for (int64_t i = 0; i < tile.rows; ++i) rows.add(live_of(room, head, tile, i));
    return rows.dead(tile.first_key, tile.first_key + tile.keys);
  }

  // A row with P = 0 counts as zeros, whatever it holds.
  void load_queries(const Room& room, const Head& head, const Tile& tile) const {
    load_rows<S>(problem_.q, head.s, tile.h, tile.first_row, tile.rows, room.q);
    load_rows<S>(problem_.dout, head.s, tile.h, tile.first_row, tile.rows, room.dout);
    load_rows<S>(problem_.out, head.s, tile.h, tile.first_row, tile.rows, room.out);
    const int64_t q_row = row_floats<S>(problem_.head_dim), v_row = row_floats<S>(problem_.value_dim);
    for (int64_t i = 0; i < tile.rows; ++i) {
      if (lse_of_row(room, head, tile, i) != -kInfinity) continue;
      zero<S>(room.q + i * q_row, q_row);
      zero<S>(room.dout + i * v_row, v_row);
      zero<S>(room.out + i * v_row, v_row);
    }
    count_read(tile.rows * 4);
  }

  void scores(const Room& room, const Tile& tile) const {
    multiply_transposed<S>(room.q, room.k.panels, problem_.head_dim, tile.rows, tile.keys, room.p, s_row_);
    multiply_transposed<S>(room.dout, room.v.panels, problem_.value_dim, tile.rows, tile.keys, room.ds, s_row_);
  }

  void probabilities(const Room& room, const Head& head, const Tile& tile) const {
    for (int64_t i = 0; i < tile.rows; ++i) {
      float* slopes = has_softcap(problem_) ? room.slopes + i * s_row_ : nullptr;
      recompute_probabilities<S>(row_at(room, head, tile, i), lse_of_row(room, head, tile, i), room.p + i * s_row_,
                                 slopes);
    }
  }

  void gradients(const Room& room, const Head& head, const Tile& tile) const {
    const int64_t v_row = row_floats<S>(problem_.value_dim);
    for (int64_t i = 0; i < tile.rows; ++i) {
      const float shift =
          row_shift<S>(problem_, head.s, tile.h, tile.first_row + i, room.dout + i * v_row, room.out + i * v_row);
      score_gradients<S>(row_at(room, head, tile, i), shift, room.p + i * s_row_, room.ds + i * s_row_);
    }
  }

  void add_dbias(const Room& room, const Head& head, const Tile& tile) const {
    for (int64_t i = 0; i < tile.rows; ++i)
      add_to_dbias<S>(row_at(room, head, tile, i), room.ds + i * s_row_, {0, INT64_MAX}, problem_.dbias);
  }

  void through_softcap(const Room& room, const Head& head, const Tile& tile) const {
    for (int64_t i = 0; i < tile.rows; ++i)
      multiply_row<S>(row_at(room, head, tile, i), room.slopes + i * s_row_, room.ds + i * s_row_);
  }

  void add_dq(const Room& room, const Head& head, const Tile& tile) const {
    const int64_t row = row_floats<S>(problem_.head_dim);
    const auto scale = S::set(problem_.softmax_scale);
    zero<S>(room.dq_tile, round_up(tile.rows, S::kStripRows) * row);
    add_product<S>(room.ds, s_row_, room.k.strips, room.k.stride, problem_.head_dim, tile.rows, tile.keys,
                   room.dq_tile);
    for (int64_t i = 0; i < tile.rows; ++i) {
      if (lse_of_row(room, head, tile, i) == -kInfinity) continue;  // 0 * NaN of a K that other rows use is NaN
      each_vector<S>(
          dq_row(room, head, tile.g, tile.first_row + i), 0, problem_.head_dim,
          [&](int64_t d, typename S::Vec sum) { return S::fma(scale, S::load(room.dq_tile + i * row + d), sum); });
    }
    count_read(tile.rows * problem_.head_dim * 4);
    count_written(tile.rows * problem_.head_dim * 4);
  }

  void store_keys(const Room& room, const Head& head, const Tensor& gradient, const float* panels, float factor,
                  int64_t first, int64_t keys) const {
    if (!gradient) return;
    store_panels<S>(problem_, gradient, head.s, head.h_kv, {first, first + keys}, factor, panels, room.k.staging);
  }

  void finish(const Room& room, const Head& head, KeyRange hull) const {
    for (const Tensor* gradient : {&problem_.dk, &problem_.dv}) {
      clear_keys<S>(problem_, *gradient, head.s, head.h_kv, {0, hull.lo});
      clear_keys<S>(problem_, *gradient, head.s, head.h_kv, {hull.hi, head.s.keys});
    }
    for (int64_t g = 0; own_dq_ && g < group_; ++g)
      for (int64_t i = 0; i < head.s.rows; ++i) {
        std::memcpy(room.dq_tile, dq_row(room, head, g, i), problem_.head_dim * sizeof(float));
        count_read(problem_.head_dim * 4);
        store_gradient<S>(problem_, problem_.dq, row_offset(problem_.dq, head.s, i, head.h_kv * group_ + g), 1,
                          room.dq_tile);
      }
  }

  // ---- Small steps.

  bool shares_dbias() const {
    const int64_t* shape = problem_.dbias.shape;
    return problem_.dbias && ((shape[0] == 1 && problem_.batch > 1) || (shape[1] == 1 && problem_.heads_kv > 1));
  }

  float* dq_row(const Room& room, const Head& head, int64_t g, int64_t i) const {
    return own_dq_ ? room.dq + (g * head.s.rows + i) * problem_.head_dim
                   : row_of<float>(problem_.dq, head.s, i, head.h_kv * group_ + g);
  }

  KeyRange live_of(const Room& room, const Head& head, const Tile& tile, int64_t i) const {
    return room.live[tile.g * head.s.rows + tile.first_row + i];
  }

  // -inf for a row without a live key: its P is 0.
  float lse_of_row(const Room& room, const Head& head, const Tile& tile, int64_t i) const {
    return live_of(room, head, tile, i).empty() ? -kInfinity : lse_of(problem_.lse, head.s, tile.first_row + i, tile.h);
  }

  ScoreRow row_at(const Room& room, const Head& head, const Tile& tile, int64_t i) const {
    return {problem_, head.s, tile.h, tile.first_row + i, live_of(room, head, tile, i), tile.first_key, tile.keys};
  }

  static int64_t panels_of(int64_t keys) { return ceil_div(keys, S::kTileCols); }

  Room carve_room(Carver& carver) const {
    const int64_t rows = round_up(blocks_.rows, S::kTileCols), keys = round_up(blocks_.keys, S::kTileCols);
    const int64_t q_row = row_floats<S>(problem_.head_dim), v_row = row_floats<S>(problem_.value_dim);
    const int64_t k_panels = panels_of(keys) * panel_floats<S>(problem_.head_dim);
    const int64_t v_panels = panels_of(keys) * panel_floats<S>(problem_.value_dim);
    Room room;
    room.dq = carver.take<float>(own_dq_ ? group_ * problem_.max_rows * problem_.head_dim : 0);
    room.live = carver.take<KeyRange>(group_ * problem_.max_rows);
    room.q = carver.take<float>(rows * q_row);
    room.dout = carver.take<float>(rows * v_row);
    room.out = carver.take<float>(rows * v_row);
    float* staging = carver.take<float>(S::kTileCols * greater(q_row, v_row));
    float* strips = carver.take<float>(keys * round_up(problem_.head_dim, S::kStripCols));
    room.k = {carver.take<float>(k_panels), strips, keys, staging};
    room.v = {carver.take<float>(v_panels), nullptr, keys, staging};
    room.p = carver.take<float>(rows * s_row_);
    room.ds = carver.take<float>(rows * s_row_);
    room.slopes = carver.take<float>(has_softcap(problem_) ? rows * s_row_ : 0);
    room.dq_tile = carver.take<float>(rows * q_row);
    room.dk = carver.take<float>(k_panels);
    room.dv = carver.take<float>(v_panels);
    return room;
  }

  const Problem& problem_;
  const int64_t workers_;
  Blocks blocks_;
  char* workspace_;
  int64_t s_row_, group_, room_bytes_;
  bool own_dq_;
};

}  // namespace tilewise::cpu::v1
