// Standard attention, backward: P is computed again from LSE, and P and dS lie in memory, whole, as automatic
// differentiation of the materialised forward has them.
#pragma once

#include "cpu/standard/squares.h"

namespace tilewise::cpu::standard {

template <class Simd>
class Backward {
  using S = Simd;

 public:
  static constexpr Pass kPass = Pass::backward;
  static constexpr Rank kRank = Rank::rung;
  static constexpr Algorithm kAlgorithm = Algorithm::standard;

  static void refuse(const Problem& problem, Text& reason) { Squares<S>::refuse(problem, reason); }

  Backward(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem),
        workers_(settings.workers),
        carver_{workspace},
        dbias_(carve_dbias_sums<S>(problem, carver_)),
        squares_(problem, settings, carver_) {}

  Sizing sizing() const { return squares_.sizing(); }

  void run(const Parallel& parallel) {
    const auto each_row_block = [&](auto step) { squares_.each_row_block(parallel, *this, step); };
    const auto each_key_block = [&](auto step) { squares_.each_key_block(parallel, *this, step); };
    if (problem_.dbias) clear_dbias<S>(dbias_);
    while (squares_.next_heads()) {
      each_row_block(&Backward::scores);                    // S = Q K^T
      each_row_block(&Backward::probabilities);             // P = exp(S - LSE)
      each_row_block(&Backward::prob_gradients);            // dP = dO V^T
      each_row_block(&Backward::score_gradients);           // dS = P (Z dP - delta + dLSE),  P = P Z
      if (problem_.dv) each_key_block(&Backward::dvalues);  // dV = P^T dO
      if (problem_.dbias) add_dbias(parallel);              // dbias = dS, summed where it repeats
      if (has_softcap(problem_)) each_row_block(&Backward::through_softcap);
      if (problem_.dq) each_row_block(&Backward::dqueries);  // dQ = scale dS K
      if (problem_.dk) each_key_block(&Backward::dkeys);     // dK = scale dS^T Q
    }
    if (problem_.dbias) store_dbias<S>(dbias_, problem_.dbias);
    sink_gradient(problem_, workers_, parallel);
  }

 private:
  void scores(const RowBlock& block) const { squares_.fill(block, problem_.q, problem_.k, block.head.scores); }
  void prob_gradients(const RowBlock& block) const {
    squares_.fill(block, problem_.dout, problem_.v, block.head.gradients);
  }

  // A row without a live key has LSE = -inf here, whatever a sink or other keys made of it.
  void probabilities(const RowBlock& block) const {
    const Head& head = block.head;
    squares_.each_row(block, [&](const ScoreRow& row) {
      const int64_t at = row.i * squares_.row();
      head.lse[row.i] = row.live.empty() ? -kInfinity : lse_of(problem_.lse, head.s, row.i, head.h);
      float* slopes = has_softcap(problem_) ? head.slopes + at : nullptr;
      recompute_probabilities<S>(row, head.lse[row.i], head.scores + at, slopes);
    });
    count_read(block.count * (head.keys_used() * 4 + 4));
    count_written(block.count * (head.keys_used() * (has_softcap(problem_) ? 8 : 4) + 4));
  }

  void score_gradients(const RowBlock& block) const {
    const Head& head = block.head;
    float* const* own = block.room.row;
    squares_.each_row(block, [&](const ScoreRow& row) {
      const int64_t at = row.i * squares_.row();
      load_row<S>(problem_.dout, head.s, head.h, row.i, own[0]);
      load_row<S>(problem_.out, head.s, head.h, row.i, own[1]);
      const float shift = row_shift<S>(problem_, head.s, head.h, row.i, own[0], own[1]);
      cpu::score_gradients<S>(row, shift, head.scores + at, head.gradients + at);
    });
    const int64_t pairs = block.count * head.keys_used();
    count_read(2 * pairs * 4);
    count_written((has_dropout(problem_) ? 2 : 1) * pairs * 4);
  }

  void through_softcap(const RowBlock& block) const {
    const Head& head = block.head;
    squares_.each_row(block, [&](const ScoreRow& row) {
      multiply_row<S>(row, head.slopes + row.i * squares_.row(), head.gradients + row.i * squares_.row());
    });
    count_read(2 * block.count * head.keys_used() * 4);
    count_written(block.count * head.keys_used() * 4);
  }

  void dqueries(const RowBlock& block) const {
    const Head& head = block.head;
    squares_.multiply(block, head.gradients, problem_.k);
    for (int64_t i = 0; i < block.count; ++i) {
      float* own = block.room.sum + i * row_floats<S>(problem_.head_dim);
      if (head.lse[block.first + i] == -kInfinity) zero<S>(own, problem_.head_dim);  // not 0 * NaN
      store_gradient<S>(problem_, problem_.dq, row_offset(problem_.dq, head.s, block.first + i, head.h),
                        problem_.softmax_scale, own);
    }
  }

  void dvalues(const GroupKeys& keys) const {
    key_gradient(keys, &Head::scores, problem_.dout, &Head::dvalues, problem_.dv, 1);
  }
  void dkeys(const GroupKeys& keys) const {
    key_gradient(keys, &Head::gradients, problem_.q, &Head::dkeys, problem_.dk, problem_.softmax_scale);
  }

  // gradient = factor * sum over the group's heads of square^T A. Heads that do not fit at once leave it in `sums`.
  void key_gradient(const GroupKeys& group, float* Head::*square, const Tensor& a, float* Head::*sums,
                    const Tensor& gradient, float factor) const {
    const Head& head = squares_.head_at(group.first_head);
    const int64_t of_group = problem_.group(), done = head.h % of_group;
    const int64_t count = group.keys.hi - group.keys.lo, from = group.keys.lo - head.keys.lo;
    const int64_t panel = panel_floats<S>(a.shape[3]), floats = ceil_div(count, S::kTileCols) * panel;
    float *sum = group.room.sum, *so_far = head.*sums + from / S::kTileCols * panel;
    if (done == 0) {
      zero<S>(sum, floats);
    } else {
      std::memcpy(sum, so_far, floats * sizeof(float));
      count_read(count * a.shape[3] * 4);
    }
    for (int64_t n = group.first_head; count > 0 && n < group.first_head + group.heads; ++n)
      squares_.add_columns(group.room, squares_.head_at(n), group.keys, squares_.head_at(n).*square, a);
    if (done + group.heads == of_group) {
      store_panels<S>(problem_, gradient, head.s, head.h_kv, group.keys, factor, sum, group.room.keys.staging);
      if (from > 0) return;
      clear_keys<S>(problem_, gradient, head.s, head.h_kv, {0, head.keys.lo});
      clear_keys<S>(problem_, gradient, head.s, head.h_kv, {head.keys.hi, head.s.keys});
    } else {
      std::memcpy(so_far, sum, floats * sizeof(float));
      count_written(count * a.shape[3] * 4);
    }
  }

  // Units are blocks of keys, or one where the bias repeats over the keys: no two add to the same element.
  void add_dbias(const Parallel& parallel) const {
    const int64_t step = dbias_.shape[3] == 1 ? greater(1, problem_.max_keys) : kDepth;
    each_unit<S>(parallel, workers_, ceil_div(problem_.max_keys, step), [&](int64_t, int64_t unit) {
      for (int64_t n = 0; n < squares_.heads(); ++n) {
        const Head& head = squares_.head_at(n);
        for (int64_t i = 0; i < head.s.rows; ++i)
          add_to_dbias<S>(squares_.row_at(head, i), head.gradients + i * squares_.row(),
                          {unit * step, (unit + 1) * step}, dbias_);
      }
    });
  }

  const Problem& problem_;
  const int workers_;
  Carver carver_;
  const Tensor dbias_;  // fp32 sums
  Squares<S> squares_;
};

}  // namespace tilewise::cpu::standard
