// Standard attention, forward: what FlashAttention's paper starts from (Algorithm 0). S and P lie in memory, whole,
// dead pairs included; each step goes over all of them before the next begins.
#pragma once

#include "cpu/common/forward_end.h"
#include "cpu/standard/squares.h"

namespace tilewise::cpu::standard {

template <class Simd>
class Forward {
  using S = Simd;

 public:
  static constexpr Pass kPass = Pass::forward;
  static constexpr Rank kRank = Rank::rung;
  static constexpr Algorithm kAlgorithm = Algorithm::standard;

  static void refuse(const Problem& problem, Text& reason) { Squares<S>::refuse(problem, reason); }

  Forward(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem), squares_(problem, settings, Carver{workspace}) {}

  Sizing sizing() const { return squares_.sizing(); }

  void run(const Parallel& parallel) {
    const auto each_row_block = [&](auto step) { squares_.each_row_block(parallel, *this, step); };
    while (squares_.next_heads()) {
      each_row_block(&Forward::scores);        // S = Q K^T
      each_row_block(&Forward::maxima);        // S = scale S, masked;  m = rowmax(S)
      each_row_block(&Forward::exponentials);  // P = exp(S - m);  l = rowsum(P)
      each_row_block(&Forward::normalise);     // P = P / l
      each_row_block(&Forward::outputs);       // O = P V;  LSE = m + log l
    }
  }

 private:
  void scores(const RowBlock& block) const { squares_.fill(block, problem_.q, problem_.k, block.head.scores); }

  // The sink is a key without a column; a row without any key has m = 0, l = 0.
  void maxima(const RowBlock& block) const {
    squares_.each_row(block, [&](const ScoreRow& row) {
      const float top = finish_scores<S>(row, scores_of(block, row), nullptr), sink = sink_of(problem_, row.h);
      const float most = top > sink ? top : sink;
      block.head.max[row.i] = most == -kInfinity ? 0 : most;
    });
    count_pass(block, 0, 4);
  }

  void exponentials(const RowBlock& block) const {
    squares_.each_row(block, [&](const ScoreRow& row) {
      const float m = block.head.max[row.i];
      const auto of_sink = static_cast<float>(std::exp(static_cast<double>(sink_of(problem_, row.h)) - m));
      block.head.sum[row.i] = cpu::exponentials<S>(row, m, scores_of(block, row), probs_of(block, row)) + of_sink;
    });
    count_pass(block, 4, 4);
  }

  void normalise(const RowBlock& block) const {
    squares_.each_row(block, [&](const ScoreRow& row) {
      const float l = block.head.sum[row.i];
      float* p = probs_of(block, row);
      scale_row<S>(l == 0 ? 0 : 1 / l, row.count, p);
      if (has_dropout(problem_)) each_kept<S>(row, [p](int64_t j, float z) { p[j] *= z; });
    });
    count_pass(block, 4, 0);
  }

  void outputs(const RowBlock& block) const {
    squares_.multiply(block, block.head.probs, problem_.v);
    squares_.each_row(block, [&](const ScoreRow& row) {
      float* own = block.room.sum + (row.i - block.first) * row_floats<S>(problem_.value_dim);
      const float l = block.head.sum[row.i];
      if (row.live.empty() || l == 0) zero<S>(own, problem_.value_dim);  // 0 * NaN of a V that other rows use is NaN
      const double lse = lse_of_sum(block.head.max[row.i], l);
      store_row<S>(problem_, row.sequence, row.i, row.h, lse, own);
    });
    count_read(block.count * 8);
  }

  float* scores_of(const RowBlock& block, const ScoreRow& row) const {
    return block.head.scores + row.i * squares_.row();
  }
  float* probs_of(const RowBlock& block, const ScoreRow& row) const {
    return block.head.probs + row.i * squares_.row();
  }

  // Each pass reads a square and writes one, and m or l of its rows.
  static void count_pass(const RowBlock& block, int64_t row_bytes_read, int64_t row_bytes_written) {
    count_read(block.count * (block.head.keys_used() * 4 + row_bytes_read));
    count_written(block.count * (block.head.keys_used() * 4 + row_bytes_written));
  }

  const Problem& problem_;
  Squares<S> squares_;
};

}  // namespace tilewise::cpu::standard
