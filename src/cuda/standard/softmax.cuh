// The rows of a square between the products: a thread block for each, a piece of eight columns a thread at a time.
//
//   softmax           S -> P = exp(S - m) / l, dropped; LSE = m + log l
//   score_gradients   S, dP -> P = exp(S - LSE), dropped; dS = P (Z dP + dLSE - rowsum(dO * O))
//
// A row is read twice by the softmax; the second time it is still in L1.
#pragma once

#include "core/find_keys.h"
#include "core/options.h"
#include "cuda/common/scores.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/standard/pieces.cuh"

namespace tilewise::cuda::standard {

inline constexpr int kMostThreadsOfRow = 256;
template <bool Terms>
inline constexpr int kRowBlocksAtOnce = Terms ? 2 : 4;  // of a multiprocessor, by registers

// Threads of a row's block: each has eight pieces of the longest row, or more, since what a row begins with costs as
// much as a few pieces.
inline int threads_of_row(const Problem& p) {
  return static_cast<int>(clamp(round_up(p.max_keys / (8 * kPiece), kWarp), kWarp, kMostThreadsOfRow));
}

// exp(x) as exact as the type of the probability can show.
template <class E>
TILEWISE_DEVICE float exponential(float x) {
  if constexpr (std::is_same_v<E, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

// A row of a head: its scores, piece by piece.
template <class E, bool Terms>
struct SquareRow {
  const Problem& p;
  const Squares& squares;
  Sequence s;
  ScoreRow row;
  int64_t token;
  KeyRange live, columns;
  uint64_t key = 0;  // of dropout

  TILEWISE_DEVICE SquareRow(const Problem& p, const Squares& squares, int64_t index) : p(p), squares(squares) {
    const RowOfHead at = row_of_head(p, index);
    s = find_sequence(p, at.sequence);
    row = score_row(p, s, at.head, at.i);
    token = token_of(p, s, row.i);
    live = find_live_keys(p, s, row.h, row.i);
    columns = hull_pieces(squares.hull(p, s.index, row.h / p.group()));
    if constexpr (Terms) key = dropout_key(p);
  }

  TILEWISE_DEVICE bool exists() const { return row.i < s.rows; }
  TILEWISE_DEVICE int64_t at() const { return row.h * squares.total_rows + token; }

  template <class T>
  TILEWISE_DEVICE T* piece_of(char* square, int64_t j) const {
    return squares.row_of<T>(square, row.h, token) + j;
  }

  static constexpr int kUnroll = Terms ? 1 : 2;  // pieces under way at once; with terms more would spill

  // visit(j) for the thread's pieces of the row.
  template <class Visit>
  TILEWISE_DEVICE void each_piece(Visit visit) const {
#pragma unroll kUnroll
    for (int64_t j = columns.lo + threadIdx.x * kPiece; j < columns.hi; j += blockDim.x * kPiece) visit(j);
  }

  // Which elements of the piece at j lie in the row's key interval: first <= n < last.
  struct Part {
    int first, last;
  };
  TILEWISE_DEVICE Part live_part(int64_t j) const {
    return {static_cast<int>(clamp(live.lo - j, 0, kPiece)), static_cast<int>(clamp(live.hi - j, 0, kPiece))};
  }
  TILEWISE_DEVICE bool is_live(int64_t j, Part part, int n) const {
    return n >= part.first && n < part.last && (!Terms || is_used(p, s, row, j + n));
  }

  // Final scores of a piece, -inf where a key is dead.
  TILEWISE_DEVICE void scores_at(int64_t j, float (&x)[kPiece]) const {
    const Part part = live_part(j);
    read_piece(piece_of<ScoreElement<E>>(squares.scores, j), x);
#pragma unroll
    for (int n = 0; n < kPiece; ++n) x[n] = is_live(j, part, n) ? score_at(j + n, x[n]).value : -INFINITY;
  }

  // From what the square holds: softmax_scale q.k, rounded; what the terms make of it is rounded likewise (contract C8:
  // scores in the type of q), as if it were written back.
  TILEWISE_DEVICE Capped score_at(int64_t j, float scaled) const {
    Capped score{scaled, 1};
    if constexpr (Terms) {
      score = cap_score(p, scaled);
      score.value += bias_of(p, s, row.h, row.i, j) + alibi_of(p, s, row, j);
      score.value = value_of(element_of<ScoreElement<E>>(score.value));
    }
    return score;
  }

  // x *= what dropout multiplies the probabilities of a piece by. A piece is what one draw gives, unless keys have
  // positions of their own.
  TILEWISE_DEVICE void drop(int64_t j, float (&x)[kPiece]) const {
    if (!Terms || p.dropout.threshold == 0) return;
    PhiloxBlock drawn = draw(j);
#pragma unroll
    for (int n = 0; n < kPiece; ++n) {
      int place = n;
      if (p.k_positions) {
        const int64_t position = find_key_position(p, s, lesser(j + n, s.keys - 1));
        drawn = draw(position), place = dropout_place(position);
      }
      x[n] *= dropout_factor(p, half_word(drawn, place));
    }
  }

 private:
  TILEWISE_DEVICE PhiloxBlock draw(int64_t key_position) const {
    return philox({dropout_group(key_position), static_cast<uint32_t>(row.position), static_cast<uint32_t>(row.h),
                   static_cast<uint32_t>(s.index)},
                  key);
  }
};

// The sum of exp(x - top) over some scores; 0 if none is live, since the largest adds 1. NaN shows in the sum alone.
struct SumOfExponentials {
  float top = -INFINITY, sum = 0;

  template <class E>
  TILEWISE_DEVICE void add(const float (&x)[kPiece]) {
    float most = top;
#pragma unroll
    for (float one : x) most = fmaxf(most, one);
    const float base = most == -INFINITY ? 0 : most;
    sum *= exponential<E>(top - base);
#pragma unroll
    for (float one : x) sum += exponential<E>(one - base);
    top = most;
  }
  TILEWISE_DEVICE void add(const SumOfExponentials& other) {
    if (other.sum == 0) return;
    const float most = fmaxf(top, other.top);
    sum = (sum == 0 ? 0 : sum * expf(top - most)) + other.sum * expf(other.top - most);
    top = most;
  }
};

// Of all threads of the block; call with all of them.
TILEWISE_DEVICE SumOfExponentials sum_of_block(SumOfExponentials own) {
  __shared__ float top[kMostThreadsOfRow / kWarp], sum[kMostThreadsOfRow / kWarp];
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) {
    own.add({__shfl_xor_sync(kAllLanes, own.top, other), __shfl_xor_sync(kAllLanes, own.sum, other)});
  }
  if (lane() == 0) top[threadIdx.x / kWarp] = own.top, sum[threadIdx.x / kWarp] = own.sum;
  __syncthreads();
  SumOfExponentials all;
  for (int n = 0; n < blockDim.x / kWarp; ++n) all.add({top[n], sum[n]});
  return all;
}

template <class E, bool Terms>
__global__ __launch_bounds__(kMostThreadsOfRow,
                             kRowBlocksAtOnce<Terms>) void softmax(const __grid_constant__ Problem p,
                                                                   const __grid_constant__ Squares squares) {
  const SquareRow<E, Terms> row(p, squares, blockIdx.x);
  if (!row.exists()) return;

  // m, l
  SumOfExponentials own;
  row.each_piece([&](int64_t j) {
    float x[kPiece];
    row.scores_at(j, x);
    own.add<E>(x);
  });
  SumOfExponentials all = sum_of_block(own);
  const float sum_of_keys = all.sum;
  const float sink = p.sink ? read_element(p.sink, p.sink.offset(row.row.h, 0, 0)) : -INFINITY;
  if (sink != -INFINITY) all.add({sink, 1});

  // P = exp(S - m) / l
  const float inverse = 1 / all.sum;
  row.each_piece([&](int64_t j) {
    float x[kPiece];
    row.scores_at(j, x);
#pragma unroll
    for (float& one : x) one = one == -INFINITY ? 0 : exponential<E>(one - all.top) * inverse;
    row.drop(j, x);
    write_piece(row.template piece_of<E>(squares.probs, j), x);
  });

  if (threadIdx.x > 0) return;
  const float lse = all.sum == 0 ? -INFINITY : all.top + logf(all.sum);
  squares.sums[row.at()] = sum_of_keys, squares.lse[row.at()] = lse;
  if (p.lse && !p.prior_lse) write_element(p.lse, lse_offset(p.lse, row.s, row.row.i, row.row.h), lse);
}

// From shift and lse of the rows. Bias is added behind softcap: with through_softcap dS is that of scale q.k, without
// it that of the final score.
template <class E, bool Terms>
__global__ __launch_bounds__(kMostThreadsOfRow,
                             kRowBlocksAtOnce<Terms>) void score_gradients(const __grid_constant__ Problem p,
                                                                           const __grid_constant__ Squares squares,
                                                                           bool through_softcap) {
  const SquareRow<E, Terms> row(p, squares, blockIdx.x);
  if (!row.exists()) return;
  const float lse = squares.lse[row.at()], shift = squares.shift[row.at()];
  row.each_piece([&](int64_t j) {
    float x[kPiece], dp[kPiece], kept[kPiece], prob[kPiece] = {}, ds[kPiece] = {};
    if (lse != -INFINITY) {
      read_piece(row.template piece_of<ScoreElement<E>>(squares.scores, j), x);
      read_piece(row.template piece_of<ScoreElement<E>>(squares.dprobs, j), dp);
#pragma unroll
      for (float& one : kept) one = 1;
      row.drop(j, kept);
      const auto part = row.live_part(j);
#pragma unroll
      for (int n = 0; n < kPiece; ++n) {
        if (!row.is_live(j, part, n)) continue;
        const Capped score = row.score_at(j + n, x[n]);
        const float p_of_pair = value_of(element_of<E>(exponential<E>(score.value - lse)));  // as it lies in memory
        prob[n] = p_of_pair * kept[n];
        if (p_of_pair != 0) ds[n] = p_of_pair * (kept[n] * dp[n] + shift) * (through_softcap ? score.slope : 1);
      }
    }
    write_piece(row.template piece_of<E>(squares.probs, j), prob);
    write_piece(row.template piece_of<E>(squares.dscores, j), ds);
  });
}

// ---- Host: the kernels that a problem needs.

template <class E>
auto softmax_for(const Problem& p) {
  return has_terms(p) ? softmax<E, true> : softmax<E, false>;
}
template <class E>
auto score_gradients_for(const Problem& p) {
  return has_terms(p) ? score_gradients<E, true> : score_gradients<E, false>;
}

}  // namespace tilewise::cuda::standard
