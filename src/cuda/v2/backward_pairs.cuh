// What the scores of pairs have beyond the scale, and what that does to their gradients: softcap, bias, ALiBi, mask,
// dropout. One pass over a thread's pairs for each, so that those that are absent cost a branch that all threads take.
#pragma once

#include "cuda/common/logarithms.h"
#include "cuda/common/score_scale.h"
#include "cuda/common/scores.cuh"
#include "cuda/common/tanh.cuh"
#include "cuda/v2/backward_unit.h"

namespace tilewise::cuda::v2 {

// Key row r of an mma lane is 8 r further than its first, query j of column tile n is 8 n + j further.
template <int Rows, int Cols>
class PairTerms {
  using Pairs = float[Rows][Cols][4];
  static_assert(Rows * Cols * 4 <= 32, "a pair has a bit of kept_");

  const Problem& p_;
  const Sequence& s_;
  const int head_, first_key_, first_row_, last_key_, last_row_;
  uint32_t kept_ = ~0u;  // by dropout

  TILEWISE_DEVICE int key(int r) const { return ptx::pin(min(first_key_ + r * 8, last_key_)); }
  TILEWISE_DEVICE int row(int n, int j) const { return ptx::pin(min(first_row_ + n * 8 + j, last_row_)); }
  static TILEWISE_DEVICE int bit(int r, int n, int j) { return (n * 2 * Rows + r) * 2 + j; }

  // visit(x, r, n, j) of all pairs.
  template <class Visit>
  static TILEWISE_DEVICE void each(Pairs& x, Visit visit) {
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
#pragma unroll
      for (int r = 0; r < 2 * Rows; ++r) {
#pragma unroll
        for (int j = 0; j < 2; ++j) visit(x[r / 2][n][r % 2 * 2 + j], r, n, j);
      }
      asm volatile("" ::: "memory");  // or loads of all columns would need registers at once
    }
  }

  template <class Element>
  TILEWISE_DEVICE void add_bias(Pairs& s) {
    const auto* bias = reinterpret_cast<const Element*>(p_.bias.data) + p_.bias.offset(s_.index, head_, 0, 0);
    each(s, [&](float& x, int r, int n, int j) {
      x += value_of(bias[row(n, j) * p_.bias.stride[2] + key(r) * p_.bias.stride[3]]);
    });
  }

  TILEWISE_DEVICE void add_alibi(Pairs& s) {
    const float slope = alibi_slope_of(p_, s_, head_);
    if (p_.q_positions || p_.k_positions) {
      each(s, [&](float& x, int r, int n, int j) {
        const int64_t distance = find_row_position(p_, s_, row(n, j)) - find_key_position(p_, s_, key(r));
        x -= slope * static_cast<float>(distance < 0 ? -distance : distance);
      });
    } else {
      const float first = static_cast<float>(find_row_position(p_, s_, first_row_) - first_key_);
      each(s, [&](float& x, int r, int n, int j) { x -= slope * fabsf(first + static_cast<float>((n - r) * 8 + j)); });
    }
  }

 public:
  // first_key, first_row: of the lane's first pair. Pairs past the sequence read the terms of its last row or key.
  TILEWISE_DEVICE PairTerms(const Problem& p, const Sequence& s, int head, int first_key, int first_row)
      : p_(p),
        s_(s),
        head_(head),
        first_key_(first_key),
        first_row_(first_row),
        last_key_(int(s.keys) - 1),
        last_row_(int(s.rows) - 1) {}

  // dP becomes Z dP - delta, times the slope of softcap unless gradients are of final scores; S becomes the final
  // score. delta: of the lane's first query.
  template <bool kSlope = true>
  TILEWISE_DEVICE void finish(Pairs& s, Pairs& dp, const float* delta) {
    if (p_.dropout.threshold > 0) draw();
    each(dp, [&](float& g, int r, int n, int j) {
      const float z = kept_ >> bit(r, n, j) & 1 ? p_.dropout.keep_scale : 0;
      g = z * g - delta[n * 8 + j];
    });
    if (p_.softcap != 0) {
      cap_scores(s, scale_before_tanh(p_.softmax_scale, p_.softcap), p_.softcap, [&](int i, float t) {
        if (kSlope) dp[i / (Cols * 4)][i / 4 % Cols][i % 4] *= fmaf(-t, t, 1.f);
      });
    } else {
      each(s, [&](float& x, int, int, int) { x *= p_.softmax_scale; });
    }
    if (p_.bias) {
      if (p_.bias.type == Type::f16) {
        add_bias<__half>(s);
      } else if (p_.bias.type == Type::bf16) {
        add_bias<__nv_bfloat16>(s);
      } else {
        add_bias<float>(s);
      }
    }
    if (p_.alibi_slopes) add_alibi(s);
    if (p_.mask) {
      each(s, [&](float& x, int r, int n, int j) {
        if (is_masked(p_, s_, head_, row(n, j), key(r))) x = -INFINITY;
      });
    }
  }

  // S becomes Z P, dP becomes dS. lse: of the lane's first query. A dead pair has dS = 0 whatever dP is.
  TILEWISE_DEVICE void exponentiate(Pairs& s, Pairs& dp, const float* lse) {
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
#pragma unroll
      for (int i = 0; i < Rows * 4; ++i) {
        const int r = i / 2, j = i % 2;
        float &x = s[r / 2][n][r % 2 * 2 + j], &g = dp[r / 2][n][r % 2 * 2 + j];
        const float probability = ptx::exp2((x - lse[n * 8 + j]) * kLog2e);
        g = probability == 0 ? 0 : probability * g;
        x = kept_ >> bit(r, n, j) & 1 ? probability * p_.dropout.keep_scale : 0;
      }
    }
  }

 private:
  TILEWISE_DEVICE void draw() {
    const uint64_t key_of_call = dropout_key(p_);
    const auto head = static_cast<uint32_t>(head_), sequence = static_cast<uint32_t>(s_.index);
    kept_ = 0;
#pragma unroll 1
    for (int i = 0; i < Rows * Cols * 4; ++i) {
      const int j = i % 2, r = i / 2 % (2 * Rows), n = i / (4 * Rows);
      const int64_t position = find_key_position(p_, s_, key(r));
      const auto row_position = static_cast<uint32_t>(find_row_position(p_, s_, row(n, j)));
      const PhiloxBlock block = philox({dropout_group(position), row_position, head, sequence}, key_of_call);
      if (half_word(block, dropout_place(position)) >= p_.dropout.threshold) kept_ |= 1u << i;
    }
  }
};

}  // namespace tilewise::cuda::v2
