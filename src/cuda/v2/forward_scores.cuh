// Terms, masks and dropout of the general forward. Each step takes all scores of a thread at once where `bias` and
// `mask` come in pieces of some keys, and pair by pair where they do not.
#pragma once

#include "core/find_keys.h"
#include "cuda/common/scores.cuh"
#include "cuda/common/tanh.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/v2/forward_schedule.h"

namespace tilewise::cuda::v2 {

template <class T>
struct ScoreStorage {
  // Scores that are finished one by one; or what `bias` or `mask` has for them, or their random bits.
  alignas(16) float own[T::kOwn][T::kThreads];
  Sequence sequence;
  KeyRange live[T::kM];         // keys of each row
  RowsRange ranges[T::kWarps];  // what the rows of a warp have in common
  KeyRange keys;                // that any row of the tile sees
  int64_t positions[T::kM];     // of rows
  float alibi_slope;
};

template <class T>
class GeneralScores {
  using Storage = ScoreStorage<T>;

 public:
  using Scores =
      float[T::kStrips][T::kN / 8][4];  // [keys / 8]: row lane / 4 + i / 2 * 8, key 8 n + lane % 4 * 2 + i % 2

  TILEWISE_DEVICE GeneralScores(const Problem& p, const ForwardSchedule& plan, Storage& smem, int head,
                                int64_t first_row)
      : p_(p), plan_(plan), smem_(smem), h_(head), first_row_(first_row) {}

  // The live keys of the rows, and what a warp's rows have in common. False: there are no such rows.
  TILEWISE_DEVICE bool find_rows(int sequence) {
    const Sequence s = find_sequence(p_, sequence);
    rows_ = static_cast<int>(lesser(T::kM, s.rows - first_row_));
    if (rows_ <= 0) return false;
    if (threadIdx.x == 0) smem_.sequence = s, smem_.alibi_slope = alibi_slope_of(p_, s, h_);
    for (int r = threadIdx.x; r < T::kM; r += T::kThreads) {
      smem_.live[r] = r < rows_ ? find_live_keys(p_, s, h_, first_row_ + r) : KeyRange{};
      smem_.positions[r] = r < rows_ ? find_row_position(p_, s, first_row_ + r) : 0;
    }
    __syncthreads();
    RowsRange own;
    const int first = warp() * 16 * T::kStrips;
    for (int r = first; r < min(first + 16 * T::kStrips, rows_); ++r) own.add(smem_.live[r]);
    if (lane() == 0) smem_.ranges[warp()] = own;
    __syncthreads();
    RowsRange all;
    for (const RowsRange& range : smem_.ranges) all.add(range);
    if (threadIdx.x == 0) smem_.keys = all.hull();
    __syncthreads();
    return true;
  }

  TILEWISE_DEVICE int rows() const { return rows_; }  // of the tile
  TILEWISE_DEVICE const Sequence& sequence() const { return smem_.sequence; }
  TILEWISE_DEVICE KeyRange keys() const { return smem_.keys; }
  TILEWISE_DEVICE bool used(int64_t key) const { return !own_range().dead(key, key + T::kN); }  // the block from it on

  static TILEWISE_DEVICE int own_row(int r) { return warp() * 16 * T::kStrips + lane() / 4 + r * 8; }  // in the tile
  static TILEWISE_DEVICE int own_column() { return lane() % 4 * 2; }  // the first of eight
  // Score number i of a thread.
  static TILEWISE_DEVICE float& score(Scores& s, int i) { return s[i / (T::kN / 2)][i / 4 % (T::kN / 8)][i % 4]; }

  // Begins to copy what finish() of these keys reads; if plan.fetches.
  TILEWISE_DEVICE void fetch(int64_t key) {
    if (in_turns(key)) return;
    if (p_.bias.type == Type::f32) {
      plan_.bias_piece == 16 ? fetch_pieces<4, 16>(p_.bias, key) : fetch_pieces<4, 4>(p_.bias, key);
    } else if (p_.bias) {
      plan_.bias_piece == 16 ? fetch_pieces<2, 16>(p_.bias, key) : fetch_pieces<2, 4>(p_.bias, key);
    } else {
      const int64_t column = key - smem_.sequence.mask_first_key;
      plan_.mask_piece == 8 ? fetch_pieces<1, 8>(p_.mask, column) : fetch_pieces<1, 4>(p_.mask, column);
    }
  }

  // From q.k to what softmax takes.
  TILEWISE_DEVICE void finish(Scores& s, int64_t key) {
    if (!plan_.plain_scores) {
      if (in_turns(key)) return finish_in_turns(s, key);
      add_terms(s, key);
    }
    if (!own_range().whole(key, key + T::kN)) mask_intervals(s, key);
  }

  // Of probabilities.
  TILEWISE_DEVICE void drop(Scores& s, int64_t key) {
    const uint64_t seed = dropout_key(p_);
    if (!p_.k_positions) return drop_pairs(s, key, seed);
    each(s, key, 0,
         [&](const ScoreRow& row, int64_t j, float x) { return x * dropout_of(p_, seed, smem_.sequence, row, j); });
  }

 private:
  // The number of the score of row r and its column c.
  static TILEWISE_DEVICE int place_of(int r, int c) { return r / 2 * (T::kN / 2) + c / 2 * 4 + r % 2 * 2 + c % 2; }
  TILEWISE_DEVICE const RowsRange& own_range() const { return smem_.ranges[warp()]; }

  // ---- Pair by pair.

  // Pieces of `mask` count from its own first key.
  TILEWISE_DEVICE bool in_turns(int64_t key) const {
    const int64_t mask_column = key - smem_.sequence.mask_first_key;
    return plan_.scores_in_turns || (p_.mask_tail && (mask_column < 0 || mask_column % plan_.mask_piece != 0));
  }

  TILEWISE_DEVICE ScoreRow score_row_of(int r) const {
    return score_row(p_, smem_.sequence, h_, first_row_ + min(own_row(r), rows_ - 1));
  }

  // f(row, key, x) for each x of a thread, one by one: they take turns through shared memory, so that this is written,
  // and compiled, once and not for each register. Its own rows' live keys only; `dead` becomes of the others.
  template <class F>
  TILEWISE_DEVICE void each(Scores& s, int64_t key, float dead, F&& f) {
    __syncwarp();  // others may still read what was fetched
#pragma unroll
    for (int i = 0; i < T::kOwn; ++i) smem_.own[i][threadIdx.x] = score(s, i);
#pragma unroll 1
    for (int r = 0; r < T::kRows; ++r) {
      const ScoreRow row = score_row_of(r);
      const KeyRange live = smem_.live[own_row(r)];
#pragma unroll 1
      for (int c = 0; c < T::kN / 4; ++c) {
        const int64_t j = key + c / 2 * 8 + own_column() + c % 2;
        float& x = smem_.own[place_of(r, c)][threadIdx.x];
        x = j >= live.lo && j < live.hi ? f(row, j, x) : dead;
      }
    }
#pragma unroll
    for (int i = 0; i < T::kOwn; ++i) score(s, i) = smem_.own[i][threadIdx.x];
  }

  TILEWISE_DEVICE void finish_in_turns(Scores& s, int64_t key) {
    each(s, key, plan_.scale.dead, [&](const ScoreRow& row, int64_t j, float x) {
      if (is_masked(p_, smem_.sequence, row.h, row.i, j)) return plan_.scale.dead;
      return plan_.finishes_scores ? score_of(p_, smem_.sequence, row, j, x).value : x;
    });
  }

  // ---- All at once. Four lanes share eight keys of a row, a pair of neighbours each.

  // What was fetched for the eight keys n of row r, of elements of so many bytes. It lies where scores of its own warp
  // would, as warps do not wait for one another.
  template <int ElementBytes>
  TILEWISE_DEVICE float* eight(int r, int n) {
    constexpr bool kWide = ElementBytes == 4;  // two rows of `own`
    float* const first =
        kWide ? &smem_.own[lane() / 16][warp() * 32 + lane() / 4 % 4 * 8] : &smem_.own[0][warp() * 32 + lane() / 4 * 4];
    return first + (r * (T::kN / 8) + n) * T::kThreads * (kWide ? 2 : 1);
  }
  template <class Pair>
  TILEWISE_DEVICE Pair& pair(int r, int n) {
    return reinterpret_cast<Pair*>(eight<sizeof(Pair) / 2>(r, n))[lane() % 4];
  }

  // Rows from this column on, so many bytes at a time; zeros beyond the last column.
  template <int ElementBytes, int Bytes>
  TILEWISE_DEVICE void fetch_pieces(const Tensor& t, int64_t column) {
    constexpr int kPieces = 8 * ElementBytes / Bytes, kAll = kPieces * T::kN / 8;  // of eight keys, of a row
    const int left = static_cast<int>(clamp(t.shape[3] - column, 0, T::kN)) * ElementBytes;
    const char* from = t.data + (t.offset(smem_.sequence.index, h_, first_row_) + column) * ElementBytes;
#pragma unroll 1
    for (int r = 0; r < T::kRows; ++r) {
      const char* row = from + min(own_row(r), rows_ - 1) * t.stride[2] * ElementBytes;
#pragma unroll
      for (int step = 0; step < kAll; step += 4) {
        const int i = step + lane() % 4, rest = left - i * Bytes;
        const uint32_t to = ptx::smem_addr(eight<ElementBytes>(r, i / kPieces)) + i % kPieces * Bytes;
        if (kAll % 4 == 0 || i < kAll) ptx::cp_async_few<Bytes>(to, row + i * Bytes, min(max(rest, 0), Bytes));
      }
    }
  }

  TILEWISE_DEVICE void add_terms(Scores& s, int64_t key) {
    if (p_.softcap != 0) {
      cap_scores(s, plan_.scale_before_tanh, p_.softcap, [](int, float) {});
    } else if (plan_.finishes_scores) {
#pragma unroll
      for (int i = 0; i < T::kOwn; ++i) score(s, i) *= p_.softmax_scale;
    }
    if (p_.bias) add_bias(s);
    if (p_.alibi_slopes) add_alibi(s, key);
    if (p_.mask) mask_pairs(s);
  }

  // visit(x, r, n): x[2], the scores of pair n of row r.
  template <class Visit>
  static TILEWISE_DEVICE void each_pair(Scores& s, Visit&& visit) {
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
      for (int n = 0; n < T::kN / 8; ++n) visit(&s[r / 2][n][r % 2 * 2], r, n);
    }
  }
  // add(r, n): what joins the two.
  template <class Add>
  static TILEWISE_DEVICE void add_to_pairs(Scores& s, Add&& add) {
    each_pair(s, [&](float* x, int r, int n) {
      const float2 term = add(r, n);
      x[0] += term.x, x[1] += term.y;
    });
  }
  TILEWISE_DEVICE void add_bias(Scores& s) {
    if (p_.bias.type == Type::f32) {
      add_to_pairs(s, [&](int r, int n) { return pair<float2>(r, n); });
    } else if (p_.bias.type == Type::f16) {
      add_to_pairs(s, [&](int r, int n) { return __half22float2(pair<__half2>(r, n)); });
    } else {
      add_to_pairs(s, [&](int r, int n) { return __bfloat1622float2(pair<__nv_bfloat162>(r, n)); });
    }
  }
  TILEWISE_DEVICE void add_alibi(Scores& s, int64_t key) {
    const float slope = smem_.alibi_slope;
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const float distance = static_cast<float>(smem_.positions[own_row(r)] - key - own_column());
#pragma unroll
      for (int c = 0; c < T::kN / 4; ++c) {
        score(s, place_of(r, c)) -= slope * fabsf(distance - static_cast<float>(c / 2 * 8 + c % 2));
      }
    }
  }

  // A block of random bits serves the eight keys that four lanes share, a word each: one lane makes it for all four.
  TILEWISE_DEVICE void drop_pairs(Scores& s, int64_t key, uint64_t seed) {
    constexpr int kBlocks = T::kRows * T::kN / 8;  // of four lanes
    __syncwarp();
#pragma unroll 1
    for (int i = lane() % 4; i < kBlocks; i += 4) {
      const auto position = static_cast<uint32_t>(smem_.positions[own_row(i / (T::kN / 8))]);
      const PhiloxBlock block = philox({dropout_group(key) + i % (T::kN / 8), position, static_cast<uint32_t>(h_),
                                        static_cast<uint32_t>(smem_.sequence.index)},
                                       seed);
      *reinterpret_cast<uint4*>(eight<2>(0, i)) = {block.word[0], block.word[1], block.word[2], block.word[3]};
    }
    __syncwarp();
    each_pair(s, [&](float* x, int r, int n) {
      const uint32_t word = pair<uint32_t>(r, n);
      x[0] *= dropout_factor(p_, word & 0xffff);
      x[1] *= dropout_factor(p_, word >> 16);
    });
  }

  TILEWISE_DEVICE void mask_pairs(Scores& s) {
    each_pair(s, [&](float* x, int r, int n) {
      const uint32_t live = pair<uint16_t>(r, n);
      x[0] = live & 0xff ? x[0] : plan_.scale.dead;
      x[1] = live >> 8 ? x[1] : plan_.scale.dead;
    });
  }
  TILEWISE_DEVICE void mask_intervals(Scores& s, int64_t key) {
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const KeyRange live = smem_.live[own_row(r)];
      const int64_t origin = key + own_column();
      const int lo = static_cast<int>(clamp(live.lo - origin, -1, T::kN)),
                hi = static_cast<int>(clamp(live.hi - origin, -1, T::kN));
#pragma unroll
      for (int c = 0; c < T::kN / 4; ++c) {
        const int j = c / 2 * 8 + c % 2;
        float& x = score(s, place_of(r, c));
        x = j >= lo && j < hi ? x : plan_.scale.dead;
      }
    }
  }

  const Problem& p_;
  const ForwardSchedule& plan_;
  Storage& smem_;
  int h_;              // head of q
  int64_t first_row_;  // of the tile, in its sequence
  int rows_ = 0;       // of the tile
};

}  // namespace tilewise::cuda::v2
