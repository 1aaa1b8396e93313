// FlashAttention-2 forward with every option of a call: masks are intervals of keys that the rows' threads look up, all
// else are branches at run time that a whole thread block takes alike. A warp owns 16 or 32 rows; a block of keys comes
// while the values before it are multiplied, and the other way round.
#pragma once

#include "cuda/common/joined_lse.cuh"
#include "cuda/common/softmax.cuh"
#include "cuda/common/store.cuh"
#include "cuda/common/tile.cuh"
#include "cuda/common/tile_f32.cuh"
#include "cuda/v2/forward_scores.cuh"
#include "cuda/v2/forward_tiles.h"
#include "cuda/v2/forward_unit.h"
#include "cuda/v2/forward_work.cuh"

namespace tilewise::cuda::v2 {

template <class E, int D>
struct GeneralTile {
  using Element = E;
  static constexpr GeneralForwardTile c = general_forward_tile(D, sizeof(E));
  static constexpr int kHeadDim = D, kWarps = c.warps, kThreads = 32 * kWarps, kM = c.rows(), kN = c.keys;
  static constexpr int kStrips = c.strips, kRows = 2 * kStrips;  // strips of 16 rows of a warp, rows of a thread
  static constexpr int kCopy = 16 / sizeof(E);                   // elements of a copy
  static constexpr int kPitch = D + kCopy;       // rows 16 bytes apart in the banks: fragments come without conflicts
  static constexpr int kOwn = kStrips * kN / 2;  // scores of a thread
};

template <class T>
struct GeneralStorage {
  typename T::Element q[T::kM][T::kPitch], k[T::kN][T::kPitch], v[T::kN][T::kPitch];
  ScoreStorage<T> scores;
  float shifts[T::kThreads][T::kRows];  // of far rows
};

// One block of rows of one head.
template <class T>
class GeneralForward {
  using E = typename T::Element;
  using Storage = GeneralStorage<T>;
  using Scores = typename GeneralScores<T>::Scores;
  using Output = float[T::kStrips][T::kHeadDim / 8][4];  // [columns / 8], likewise

 public:
  TILEWISE_DEVICE GeneralForward(const Problem& p, const ForwardSchedule& plan, Storage& smem, const ForwardWork& work)
      : p_(p),
        plan_(plan),
        smem_(smem),
        h_(work.head),
        kv_(plan.group.quotient(work.head)),
        first_row_(int64_t{work.row_block} * T::kM),
        scores_(p, plan, smem.scores, h_, first_row_) {}

  TILEWISE_DEVICE bool find_rows(int sequence) { return scores_.find_rows(sequence); }  // false: there are none

  TILEWISE_DEVICE void add_all_keys() {
    copy(smem_.q, p_.q, row_offset(p_.q, scores_.sequence(), first_row_, h_), p_.q.stride[1], {0, scores_.rows()});
    const KeyRange keys = scores_.keys();
    const int last = static_cast<int>(ceil_div(keys.hi, T::kN)) - 1, first = static_cast<int>(keys.lo / T::kN);
    if (!keys.empty()) copy_keys(last);
    for (int n = last; n >= first && !keys.empty(); --n) {
      const int64_t key = int64_t{n} * T::kN;
      const bool used = scores_.used(key);
      Scores s = {};
      ptx::cp_async_wait_all();  // K
      __syncthreads();           // all have it, and are done with V
      copy_values(n);
      if (used) {
        if (plan_.fetches) scores_.fetch(key);
        multiply_scores(s);
      }
      ptx::cp_async_wait_all();  // V
      __syncthreads();           // all have it, and are done with K
      if (n > first) copy_keys(n - 1);
      if (!used) continue;
      scores_.finish(s, key);
      raise_reference(s);
      exponentiate(s);
      if (p_.dropout.threshold > 0) scores_.drop(s, key);
      multiply_output(s);
    }
    ptx::cp_async_wait_all();
  }

  TILEWISE_DEVICE void store() {
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      softmax_.sum[r] = quad_sum(softmax_.sum[r]);
      if (own_row(r) < scores_.rows()) store_row(r);
    }
  }

 private:
  static TILEWISE_DEVICE int own_row(int r) { return GeneralScores<T>::own_row(r); }
  static TILEWISE_DEVICE int own_column() { return GeneralScores<T>::own_column(); }
  static TILEWISE_DEVICE float& score(Scores& s, int i) { return GeneralScores<T>::score(s, i); }

  // ---- Copies. What lies outside of `rows` or past the head size becomes zeros: nobody looks at it.

  template <int Rows>
  TILEWISE_DEVICE void copy(E (&to)[Rows][T::kPitch], const Tensor& t, int64_t offset, int64_t stride, KeyRange rows) {
    constexpr int kPieces = T::kHeadDim / T::kCopy;
    const E* from = reinterpret_cast<const E*>(t.data) + offset;
#pragma unroll 4
    for (int i = threadIdx.x; i < Rows * kPieces; i += T::kThreads) {
      const int row = i / kPieces, column = i % kPieces * T::kCopy;
      const bool inside = row >= rows.lo && row < rows.hi && column < t.shape[3];
      ptx::cp_async_or_zero(ptx::smem_addr(&to[row][column]), from + row * stride + column, inside);
    }
  }
  TILEWISE_DEVICE void copy_block(E (&to)[T::kN][T::kPitch], const Tensor& t, int n) {
    const int64_t key = int64_t{n} * T::kN, offset = key_offset(t, scores_.sequence(), key, kv_), stride = t.stride[1];
    const KeyRange inside{scores_.keys().lo - key, scores_.keys().hi - key};
    if constexpr (std::is_same_v<E, float>) {
      copy(to, t, offset, stride, inside);
    } else {
      using Copy = RowCopy<T, T::kN>;
      const E* from = reinterpret_cast<const E*>(t.data) + offset + Copy::row() * stride + Copy::col();
      const uint32_t at = ptx::smem_addr(&to[Copy::row()][Copy::col()]);
      const int first = static_cast<int>(greater(inside.lo, 0)), end = static_cast<int>(lesser(inside.hi, T::kN));
#pragma unroll
      for (int i = 0; i < Copy::kPasses; ++i) {
        Copy::pass_within(i, at, from, stride, end, static_cast<int>(t.shape[3]), first);
      }
    }
  }
  TILEWISE_DEVICE void copy_keys(int n) { copy_block(smem_.k, p_.k, n); }
  TILEWISE_DEVICE void copy_values(int n) { copy_block(smem_.v, p_.v, n); }

  // ---- S = Q K^T.

  TILEWISE_DEVICE void multiply_scores(Scores& s) {
    const auto(&q)[16 * T::kStrips][T::kPitch] =
        reinterpret_cast<const E(&)[16 * T::kStrips][T::kPitch]>(smem_.q[warp() * 16 * T::kStrips]);
    if constexpr (std::is_same_v<E, float>) {
      multiply_f32<T::kHeadDim / 8, 1>(
          s[0], [&](int step, float(&a)[4]) { load_a_f32(a, q, step * 8); },
          [&](int step, int n, float(&b)[2]) { load_rows_f32(b, smem_.k, n * 8, step * 8); });
    } else {
      const uint32_t q_at = ptx::smem_addr(&q[lane() % 16][lane() / 16 * 8]);
      const uint32_t k_at = ptx::smem_addr(&smem_.k[lane() % 8 + lane() / 16 * 8][lane() / 8 % 2 * 8]);
      multiply<E, T::kHeadDim / 16, T::kN / 16, 1, false>(
          s,
          [&](int step, uint32_t(&a)[T::kStrips][4]) {
#pragma unroll
            for (int m = 0; m < T::kStrips; ++m) ptx::ldmatrix(a[m], q_at + (m * 16 * T::kPitch + step * 16) * 2);
          },
          [&](int step, int n, uint32_t(&b)[4]) { ptx::ldmatrix(b, k_at + (n * 16 * T::kPitch + step * 16) * 2); },
          [](int, int) {});
    }
  }

  // ---- P = softmax(S), without its division.

  TILEWISE_DEVICE void raise_reference(Scores& s) {
    if (!__any_sync(~0u, softmax_.may_raise(s, plan_.scale.quick, false))) return;
    float top[T::kRows];
    softmax_.find_tops(top, s, plan_.scale);
    softmax_.raise(top, s, o_, false, smem_.shifts[threadIdx.x], plan_.scale);
  }
  TILEWISE_DEVICE void exponentiate(Scores& s) {
#pragma unroll
    for (int i = 0; i < T::kOwn; ++i) {
      const int r = i / (T::kN / 2) * 2 + i / 2 % 2;
      float& x = score(s, i);
      x = ptx::exp2(fmaf(x, plan_.scale.log2, -softmax_.ref[r]));
      softmax_.sum[r] += x;
    }
  }

  // ---- O += P V.

  TILEWISE_DEVICE void multiply_output(const Scores& s) {
    if constexpr (std::is_same_v<E, float>) {
      multiply_f32<T::kN / 8, T::kN / 8>(
          o_[0], [&](int step, float(&a)[4]) { accumulators_as_a(a, s[0][step]); },
          [&](int step, int n, float(&b)[2]) { load_columns_f32(b, smem_.v, step * 8, n * 8); });
    } else {
      const uint32_t v_at = ptx::smem_addr(&smem_.v[lane() % 16][lane() / 16 * 8]);
      multiply<E, T::kN / 16, T::kHeadDim / 16, 1, false>(
          o_,
          [&](int step, uint32_t(&a)[T::kStrips][4]) {
#pragma unroll
            for (int i = 0; i < 4 * T::kStrips; ++i) {
              const float* x = &s[i / 4][2 * step + i / 2 % 2][i % 2 * 2];
              a[i / 4][i % 4] = ptx::pack<E>(x[0], x[1]);
            }
          },
          [&](int step, int n, uint32_t(&b)[4]) {
            ptx::ldmatrix_trans(b, v_at + (step * 16 * T::kPitch + n * 16) * 2);
          },
          [](int, int) {});
    }
  }

  // ---- O and LSE, with the sink and the result over other keys.

  TILEWISE_DEVICE void store_row(int r) {
    const Sequence& s = scores_.sequence();
    const int64_t i = first_row_ + own_row(r);
    float lse = softmax_.lse(r, smem_.shifts[threadIdx.x], plan_.scale), factor = softmax_.inverse(r), prior_weight = 0;
    if (p_.sink) {
      const JoinedLse joined = join(lse, read_element(p_.sink, p_.sink.offset(h_, 0, 0)));
      lse = joined.lse, factor *= joined.own;
    }
    if (p_.prior_out) {
      const JoinedLse joined = join(lse, read_element(p_.prior_lse, lse_offset(p_.prior_lse, s, i, h_)));
      lse = joined.lse, factor *= joined.own, prior_weight = joined.joining;
    }
    if (p_.lse && lane() % 4 == 0) write_element(p_.lse, lse_offset(p_.lse, s, i, h_), lse);
    const int64_t to = row_offset(p_.out, s, i, h_), from = p_.prior_out ? row_offset(p_.prior_out, s, i, h_) : 0;
#pragma unroll
    for (int n = 0; n < T::kHeadDim / 8; ++n) {
      const int column = n * 8 + own_column();
      if (column >= p_.value_dim) break;
      float x[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        x[c] = factor == 0 ? 0 : o_[r / 2][n][r % 2 * 2 + c] * factor;
        if (prior_weight != 0) x[c] += prior_weight * read_element(p_.prior_out, from + column + c);
      }
      store_pair(p_.out, to + column, x[0], x[1]);
    }
  }

  const Problem& p_;
  const ForwardSchedule& plan_;
  Storage& smem_;
  int h_, kv_;         // head of q, of k and v
  int64_t first_row_;  // of the tile, in its sequence
  GeneralScores<T> scores_;
  SoftmaxRows<T::kStrips> softmax_;
  Output o_ = {};
};

template <class T>
__global__ __launch_bounds__(T::kThreads, 2) void forward_general_sm80(const __grid_constant__ Problem p,
                                                                       const __grid_constant__ ForwardSchedule plan) {
  extern __shared__ __align__(128) uint8_t raw[];
  const ForwardWork work = ForwardWork::longest_first(plan, blockIdx.x);
  GeneralForward<T> block(p, plan, *reinterpret_cast<GeneralStorage<T>*>(raw), work);
  if (!block.find_rows(work.sequence)) return;
  block.add_all_keys();
  block.store();
}

}  // namespace tilewise::cuda::v2
