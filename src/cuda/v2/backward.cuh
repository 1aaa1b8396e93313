// FlashAttention-2 backward with the instructions of sm_80. A thread block owns a block of keys of a kv head and walks
// over the blocks of queries of all query heads that read it, so that nothing but dQ is summed across thread blocks:
//
//   S^T = K Q^T        P^T = exp2(S^T - LSE)           dV += P^T dO
//   dP^T = V dO^T      dS^T = P^T (dP^T - delta)       dK += dS^T Q       dQ += dS K
//
// S^T and dP^T stay in registers, P^T and dS^T go through shared memory once: other warps read them as operands.
#pragma once

#include "cuda/common/tile.cuh"
#include "cuda/v2/backward_pairs.cuh"
#include "cuda/v2/backward_rows.cuh"
#include "cuda/v2/backward_shape.cuh"

namespace tilewise::cuda::v2 {

template <class T>
class Backward {
  using F = Fragments<T>;
  using E = typename T::Element;
  using Storage = BackwardStorage<T>;
  using KeyCopy = RowCopy<T, T::kKeys>;
  using QueryCopy = RowCopy<T, T::kQueries>;
  static_assert(sizeof(Storage) <= T::kSharedBytes);
  static constexpr int kStageBytes = sizeof(typename Storage::Stage), kDoutAt = sizeof(Storage::Stage::q);
  static constexpr int kKvBytes = sizeof(Storage::k);
  static constexpr int kProbBytes = sizeof(Storage::p), kDsBytes = sizeof(Storage::ds[0]);
  static constexpr int kSteps = T::kHeadDim / 16;  // of mma along a row of Q, K, V or dO
  static constexpr int kCopies = QueryCopy::kPasses;
  static constexpr bool kKeeps = T::kHeadDim <= 64;  // has registers for what could be computed anew
  static constexpr int kScoreRows = T::kOwnKeys / 16, kScoreCols = T::kOwnQueries / 8;  // tiles of S^T
  static constexpr int kDqRows = T::kDqRows / 16, kDqTiles = kDqRows * T::kDqCols / 8;

  // Not computed anew for each block.
  template <class X>
  static TILEWISE_DEVICE X keep(X x) {
    if constexpr (kKeeps) x = static_cast<X>(ptx::pin(static_cast<int>(x)));
    return x;
  }

  const Problem& p;
  const BackwardWork& work;
  Storage& smem;
  const KeyBlock<T> block;
  std::conditional_t<T::kRanges, RangeWalk<T>, SimpleWalk<T>> blocks{p, work, block};
  UsedKeys used;
  const int lane = keep(threadIdx.x % 32), warp = ptx::uniform(threadIdx.x / 32);
  const int group = warp / T::kParts, part = warp % T::kParts;  // warps of a group share 32 keys
  const int score_key = group * 32 + part / (T::kQueries / T::kOwnQueries) * T::kOwnKeys;
  const int score_query = part % (T::kQueries / T::kOwnQueries) * T::kOwnQueries;
  const int dq_row = warp % T::kDqRowParts * T::kDqRows, dq_col = warp / T::kDqRowParts * T::kDqCols;

  // Where a lane's fragments lie. A: 16 rows, then the same 8 columns further. B of rows: 8 rows x 16 columns, then the
  // next 8 rows. B of columns (transposed) reads like A, transposed A like B of rows.
  const int a_row = lane % 16, a_col = lane / 16 * 8, b_row = lane % 8 + lane / 16 * 8, b_col = lane / 8 % 2 * 8;
  const uint32_t a_at = ptx::smem_addr(&smem.k[a_row][a_col]);
  const uint32_t k_as_a = keep(a_at + score_key * T::kPitch * 2), v_as_a = k_as_a + kKvBytes;
  const uint32_t k_cols = keep(a_at + dq_col * 2);
  const uint32_t q_cols = keep(a_at + 2 * kKvBytes + part * T::kOwnCols * 2);
  const uint32_t q_rows = keep(ptx::smem_addr(&smem.stage[0].q[score_query + b_row][b_col]));
  const uint32_t p_as_a = keep(ptx::smem_addr(&smem.p[group * 32 + a_row][a_col])), ds_as_a = p_as_a + kProbBytes;
  const uint32_t ds_as_q = keep(ptx::smem_addr(&smem.ds[0][b_row][dq_row + b_col]));
  const uint32_t copy_to = keep(ptx::smem_addr(&smem.stage[0].q[QueryCopy::row()][QueryCopy::col()]));

  float dk[2][T::kOwnCols / 8][4] = {}, dv[2][T::kOwnCols / 8][4] = {};
  float s[kScoreRows][kScoreCols][4], dp[kScoreRows][kScoreCols][4];
  float dq[kDqRows][T::kDqCols / 8][4];

  QueryBlock here = blocks.first(block), next, last;  // in work, to be copied, before it
  QueryBlock owed;                                    // in order: whose turn is still to be passed
  const int first_token = block.first_row + QueryCopy::row();
  const E* const q_start = element<E>(p.q, block.q_slot, first_token, 0) + QueryCopy::col();
  const E* const dout_start = element<E>(p.dout, block.q_slot, first_token, 0) + QueryCopy::col();
  const E *q, *dout;  // the thread's place in the block that is copied

  // ---- Copies to shared memory: columns past D or Dv and rows past the end become zeros.

  TILEWISE_DEVICE void load_keys() {
    const E* k = element<E>(p.k, block.k_slot, block.first_token + KeyCopy::row(), block.kv_head) + KeyCopy::col();
    const E* v = element<E>(p.v, block.k_slot, block.first_token + KeyCopy::row(), block.kv_head) + KeyCopy::col();
    const uint32_t to = ptx::smem_addr(&smem.k[KeyCopy::row()][KeyCopy::col()]);
#pragma unroll
    for (int i = 0; i < KeyCopy::kPasses; ++i) {
      KeyCopy::pass_within(i, to, k, p.k.stride[1], used.end, int(p.head_dim), used.begin);
      KeyCopy::pass_within(i, to + kKvBytes, v, p.v.stride[1], used.end, int(p.value_dim), used.begin);
    }
  }

  // The keys of the block that a query of another one uses: x <= j < y.
  TILEWISE_DEVICE int2 live_keys_of(const QueryBlock& b, int query) const {
    const int64_t head = keys_differ_by_head(p) ? b.head : 0;
    const int2 live = work.live[head * work.rows + block.work_row + b.m * T::kQueries + query];
    return {live.x - block.first_key, live.y - block.first_key};
  }

  // The thread's place in a block of Q or dO: from that in row 0 of head 0 where it is kept, otherwise pinned, so that
  // nothing of it is.
  TILEWISE_DEVICE const E* place_in(const Tensor& t, const E* start, const QueryBlock& b) const {
    const int row = b.m * T::kQueries, token = block.first_row + row + QueryCopy::row();
    if (kKeeps) return start + t.offset(0, row, b.head);
    return element<E>(t, ptx::pin(block.q_slot), ptx::pin(token), b.head) + QueryCopy::col();
  }

  // Turns to a block, and copies its lse and delta. Of how many rows this thread copies its own one: what lies in rows
  // without keys does not matter.
  TILEWISE_DEVICE int begin_copy(const QueryBlock& b, int stage) {
    const int i = threadIdx.x % (T::kQueries / 4) * 4, row = b.m * T::kQueries;
    q = place_in(p.q, q_start, b);
    dout = place_in(p.dout, dout_start, b);
    const int64_t at = b.head * work.rows + block.work_row + row + i;
    if (threadIdx.x < T::kQueries / 4) {
      ptx::cp_async_or_zero(ptx::smem_addr(&smem.stage[stage].lse[i]), work.lse + at, true);
    } else if (threadIdx.x < T::kQueries / 2) {
      ptx::cp_async_or_zero(ptx::smem_addr(&smem.stage[stage].delta[i]), work.delta + at, true);
    }
    static_assert(QueryCopy::kRows == T::kQueries);
    bool dead = !T::kRanges && row + QueryCopy::row() < smem.block.keyless_rows;
    if (T::kRanges && !blocks.is_whole(block, b)) {
      const int2 live = live_keys_of(b, QueryCopy::row());
      dead = live.x >= live.y;
    }
    return dead ? 0 : block.rows - row;
  }
  // Copies `first` <= i < `last` of its Q and dO.
  TILEWISE_DEVICE void copy(int first, int last, int stage, int rows_left) {
    const uint32_t to = copy_to + stage * kStageBytes;
#pragma unroll
    for (int i = first; i < last; ++i) {
      QueryCopy::pass_within(i, to, q, p.q.stride[1], rows_left, int(p.head_dim));
      QueryCopy::pass_within(i, to + kDoutAt, dout, p.dout.stride[1], rows_left, int(p.value_dim));
    }
  }
  TILEWISE_DEVICE void copy_all(const QueryBlock& b, int stage) {
    copy(0, kCopies, stage, begin_copy(b, stage));
    smem.full[stage].arrive_when_copied();
  }

  // ---- The steps of a block of queries.

  // S^T = K Q^T; the copies of the next block are spread over it.
  TILEWISE_DEVICE void make_scores(int stage, int next_stage, int rows_left) {
    constexpr int kMultiplies = kSteps * T::kOwnQueries / 16;
    clear(s);
    multiply<E, kSteps, T::kOwnQueries / 16, 2, false>(
        s, F::template a_of<kScoreRows, T::kPitch>(k_as_a), F::rows_of(q_rows + stage * kStageBytes),
        [&](int step, int col) {
          const int i = step * (T::kOwnQueries / 16) + col;
          if constexpr (T::kStages > 1) {
            copy(i * kCopies / kMultiplies, (i + 1) * kCopies / kMultiplies, next_stage, rows_left);
          }
        });
    if (T::kStages > 1) smem.full[next_stage].arrive_when_copied();
  }

  // dP^T = V dO^T, and in its shadow P^T = exp2(S^T - LSE), unless scores have terms.
  TILEWISE_DEVICE void make_probabilities(int stage) {
    constexpr int kMultiplies = kSteps * T::kOwnQueries / 16, kPairs = kScoreRows * 2 * kScoreCols;
    const float* lse = &smem.stage[stage].lse[score_query + lane % 4 * 2];
    auto probability = [&](int r, int n) {  // of key lane / 4 + 8 r, the pair of queries number n
      const float2 l = *reinterpret_cast<const float2*>(lse + n * 8);
      float* const x = &s[r / 2][n][r % 2 * 2];
      x[0] = ptx::exp2(fmaf(x[0], work.scale_log2, -l.x));
      x[1] = ptx::exp2(fmaf(x[1], work.scale_log2, -l.y));
    };
    clear(dp);
    multiply<E, kSteps, T::kOwnQueries / 16, 2, false>(
        dp, F::template a_of<kScoreRows, T::kPitch>(v_as_a), F::rows_of(q_rows + stage * kStageBytes + kDoutAt),
        [&](int step, int col) {
          const int i = step * (T::kOwnQueries / 16) + col;
#pragma unroll
          for (int j = i * kPairs / kMultiplies; j < (i + 1) * kPairs / kMultiplies; ++j) {
            if (!T::kTerms) probability(j % (2 * kScoreRows), j / (2 * kScoreRows));
          }
        });
  }

  // S = `dead` where a key is dead.
  TILEWISE_DEVICE void mask(float dead) {
    const int query = score_query + lane % 4 * 2, key = score_key + lane / 4;
#pragma unroll
    for (int n = 0; n < kScoreCols; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int2 live = {0, used.end};
        if (T::kRanges) {
          live = live_keys_of(here, query + n * 8 + j);
        } else if (p.causal) {
          live.y = min(live.y, here.m * T::kQueries + query + n * 8 + j - block.diagonal + 1);
        }
#pragma unroll
        for (int r = 0; r < 2 * kScoreRows; ++r) {
          if (key + r * 8 < live.x || key + r * 8 >= live.y) s[r / 2][n][r % 2 * 2 + j] = dead;
        }
      }
    }
  }

  // P and dS where scores have terms.
  TILEWISE_DEVICE void finish_pairs(int stage, bool whole) {
    const int query = score_query + lane % 4 * 2;
    PairTerms<kScoreRows, kScoreCols> terms(p, smem.sequence, here.head, block.first_key + score_key + lane / 4,
                                            here.m * T::kQueries + query);
    terms.finish(s, dp, &smem.stage[stage].delta[query]);
    if (!whole) mask(-INFINITY);
    terms.exponentiate(s, dp, &smem.stage[stage].lse[query]);
  }

  // dS^T = P^T (dP^T - delta), unless that is done; both go to shared memory.
  TILEWISE_DEVICE void hand_over(int stage, int ds_buffer) {
    const float* delta = &smem.stage[stage].delta[score_query + lane % 4 * 2];
    const uint32_t to = ptx::smem_addr(&smem.p[score_key + lane / 4][score_query + lane % 4 * 2]);
#pragma unroll
    for (int n = 0; n < kScoreCols; ++n) {
      const float2 d = *reinterpret_cast<const float2*>(delta + n * 8);
#pragma unroll
      for (int r = 0; r < 2 * kScoreRows; ++r) {
        const float *prob = &s[r / 2][n][r % 2 * 2], *grad = &dp[r / 2][n][r % 2 * 2];
        const uint32_t at = to + (r * 8 * T::kProbPitch + n * 8) * 2;
        ptx::store_shared(at, ptx::pack<E>(prob[0], prob[1]));
        const uint32_t ds = T::kTerms ? ptx::pack<E>(grad[0], grad[1])
                                      : ptx::pack<E>(prob[0] * (grad[0] - d.x), prob[1] * (grad[1] - d.y));
        ptx::store_shared(at + kProbBytes + ds_buffer * kDsBytes, ds);
      }
    }
  }

  // dQ = dS K, of the block that was number `index` of the walk.
  TILEWISE_DEVICE void make_dq(int index) {
    const int buffer = index % T::kDsBuffers;
    smem.ds_full[buffer].wait(index / T::kDsBuffers & 1);
    const uint32_t at = ds_as_q + buffer * kDsBytes;
    clear(dq);
    multiply<E, T::kKeys / 16, T::kDqCols / 16, 2, false>(
        dq,
        [=](int step, uint32_t(&a)[kDqRows][4]) {
#pragma unroll
          for (int i = 0; i < kDqRows; ++i) ptx::ldmatrix_trans(a[i], at + (step * 16 * T::kProbPitch + i * 16) * 2);
        },
        F::cols_of(k_cols), [](int, int) {});
    __syncwarp();
    if (lane == 0) smem.ds_free[buffer].arrive();
  }

  TILEWISE_DEVICE float* dq_sum_of(const QueryBlock& b) const {
    const int64_t row = b.head * work.rows + block.work_row + b.m * T::kQueries + dq_row;
    return work.dq_sum + row * T::kHeadDim + dq_col / 8 * 128 + lane * 4;
  }
  TILEWISE_DEVICE void add_dq(float* sum, int first, int last) {
#pragma unroll
    for (int i = first; i < last; ++i) {
      ptx::red_add(sum + (i % kDqRows * (T::kHeadDim / 8) + i / kDqRows) * 128, dq[i % kDqRows][i / kDqRows]);
    }
  }

  // In order: blocks of earlier keys add to a part of dQ before. Their thread blocks have been started before, so that
  // no wait is for one that has not.
  TILEWISE_DEVICE int* turn_of(const QueryBlock& b) const {
    const int64_t row = b.head * work.rows + block.work_row + b.m * T::kQueries;
    return work.turns + row / kFragmentRows * kMostWarps + warp;
  }
  // `seen`: the turn a while ago. Additions meet in L2, where those before are done once the turn is passed: no read
  // depends on it, so that it need not acquire.
  TILEWISE_DEVICE void await_turn(const QueryBlock& b, int seen) {
    const int mine = blocks.turn(block, b);
    while (ptx::uniform(seen) != mine) seen = ptx::load_relaxed(turn_of(b));
  }
  TILEWISE_DEVICE void pass_turn(const QueryBlock& b) {
    __syncwarp();
    if (lane == 0) ptx::add_release(turn_of(b), 1);
  }

  // dV += P^T dO, and in its shadow the additions to dQ: also(first, last) makes some of them.
  template <class Also>
  TILEWISE_DEVICE void make_dv(int stage, Also also) {
    constexpr int kDepth = T::kQueries / 16, kCols = T::kOwnCols / 16, kMultiplies = kDepth * kCols;
    multiply<E, kDepth, kCols, 2, false>(dv, F::template a_of<2, T::kProbPitch>(p_as_a),
                                         F::cols_of(q_cols + stage * kStageBytes + kDoutAt), [&](int step, int col) {
                                           const int i = step * kCols + col;
                                           also(i * kDqTiles / kMultiplies, (i + 1) * kDqTiles / kMultiplies);
                                         });
  }
  // dK += dS^T Q
  TILEWISE_DEVICE void make_dk(int stage, int ds_buffer) {
    multiply<E, T::kQueries / 16, T::kOwnCols / 16, 2, false>(
        dk, F::template a_of<2, T::kProbPitch>(ds_as_a + ds_buffer * kDsBytes),
        F::cols_of(q_cols + stage * kStageBytes), [](int, int) {});
  }

  TILEWISE_DEVICE void sync_group() { ptx::named_sync(1 + group, 32 * T::kParts); }

  // P and dS of block number `index` of the walk, while the next one is copied.
  TILEWISE_DEVICE void make_ds(int index) {
    const int stage = index % T::kStages, next_stage = (index + 1) % T::kStages, ds_buffer = index % T::kDsBuffers;
    int rows_left = 0;
    const bool whole = blocks.is_whole(block, here);
    next = blocks.after(block, here);
    if constexpr (T::kStages == 1) {
      if (index > 0) {
        smem.free[0].wait(index - 1 & 1);
        copy_all(here, 0);
      }
    }
    smem.full[stage].wait(index / T::kStages & 1);
    if constexpr (T::kStages > 1) {
      // All warps are done with the block that the next copies overwrite.
      if (index + 1 >= T::kStages) smem.free[next_stage].wait((index + 1) / T::kStages - 1 & 1);
      if (has(next)) rows_left = begin_copy(next, next_stage);
    }
    make_scores(stage, next_stage, rows_left);
    make_probabilities(stage);
    if constexpr (T::kTerms) {
      finish_pairs(stage, whole);
    } else if (__builtin_expect(!whole, 0)) {
      mask(0);
    }

    // The group is done with the old P, all warps are done with the old dS.
    if (index >= T::kDsBuffers && work.wants_dq) smem.ds_free[ds_buffer].wait(index / T::kDsBuffers - 1 & 1);
    sync_group();
    hand_over(stage, ds_buffer);
    __syncwarp();
    if (lane == 0) smem.ds_full[ds_buffer].arrive();
  }

 public:
  TILEWISE_DEVICE Backward(const Problem& problem, const BackwardWork& workspace, Storage& storage, int index)
      : p(problem), work(workspace), smem(storage), block(problem, workspace, index) {}

  TILEWISE_DEVICE bool has(const QueryBlock& b) const { return b.head < block.end_head; }
  TILEWISE_DEVICE bool has_keys() const { return block.keys_left > 0; }

  TILEWISE_DEVICE void walk() {
    if (threadIdx.x == 0) {
      for (auto& x : smem.full) x.init(T::kThreads);
      for (auto& x : smem.free) x.init(T::kWarps);
      for (auto& x : smem.ds_full) x.init(T::kWarps);
      for (auto& x : smem.ds_free) x.init(T::kWarps);
      smem.block = block;
      if (T::kRanges) smem.sequence = find_sequence(p, block.batch);
    }
    if constexpr (T::kRanges) {
      used = blocks.used(block, smem.used);
    } else {
      used = blocks.used(block);
      __syncthreads();
    }
    if (!has(here)) return;
    load_keys();
    copy_all(here, 0);
    for (int i = 0; has(here) || T::kLateDq; ++i) {
      if (has(here)) make_ds(i);
      if (work.in_order && i > T::kLateDq) pass_turn(owed);  // its additions have had time to arrive
      const bool have_dq = i >= T::kLateDq;
      const QueryBlock dq_of = T::kLateDq && have_dq ? last : here;
      if (work.wants_dq) {
        const int turn = work.in_order ? ptx::load_relaxed(turn_of(dq_of)) : 0;
        if (have_dq) {
          make_dq(i - T::kLateDq);
        } else {
          clear(dq);
        }
        if (work.in_order && have_dq) await_turn(dq_of, turn);
      }
      if (!has(here)) break;
      sync_group();
      if (work.wants_dq) {
        float* const sum = dq_sum_of(dq_of);
        make_dv(i % T::kStages, [&](int first, int last) { add_dq(sum, first, last); });
      } else {
        make_dv(i % T::kStages, [](int, int) {});
      }
      make_dk(i % T::kStages, i % T::kDsBuffers);
      __syncwarp();
      if (lane == 0) smem.free[i % T::kStages].arrive();
      owed = dq_of, last = here, here = next;
    }
    if (T::kLateDq && work.wants_dq) add_dq(dq_sum_of(last), 0, kDqTiles);
    if (work.in_order) pass_turn(last);
    ptx::cp_async_wait_all();
    __syncthreads();
  }

  // dK and dV leave by the shared memory of K and V, so that rows are written in one piece.
  TILEWISE_DEVICE void store() {
    store(dk, p.softmax_scale, p.dk);
    __syncthreads();
    store(dv, 1, p.dv);
  }

 private:
  TILEWISE_DEVICE void store(const float (&x)[2][T::kOwnCols / 8][4], float by, const Tensor& t) {
    if (!t) return;
    if (t.type == Type::f32) {
      auto& rows = *reinterpret_cast<float(*)[T::kKeys][T::kPitch]>(&smem.k);  // K's place and V's
      stage(x, [&](int row, int col, float a, float b) {
        *reinterpret_cast<float2*>(&rows[row][col]) = {a * by, b * by};
      });
      store_rows(t, [&](int row, int col, int64_t at) { store_gradient<E>(t, at, &rows[row][col], p.accumulate); });
    } else {
      stage(x, [&](int row, int col, float a, float b) {
        *reinterpret_cast<uint32_t*>(&smem.k[row][col]) = ptx::pack<E>(a * by, b * by);
      });
      store_rows(t, [&](int row, int col, int64_t at) {
        *reinterpret_cast<uint4*>(t.data + at * 2) = *reinterpret_cast<const uint4*>(&smem.k[row][col]);
      });
    }
  }
  // put(row, col, the two elements that lie there)
  template <class Put>
  TILEWISE_DEVICE void stage(const float (&x)[2][T::kOwnCols / 8][4], Put put) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < T::kOwnCols / 8; ++c) {
        const float* pair = &x[r / 2][c][r % 2 * 2];
        put(group * 32 + lane / 4 + r * 8, part * T::kOwnCols + c * 8 + lane % 4 * 2, pair[0], pair[1]);
      }
    }
    __syncthreads();
  }
  // put(row, col, offset in t) of each eight elements that there are
  template <class Put>
  TILEWISE_DEVICE void store_rows(const Tensor& t, Put put) {
    constexpr int kChunks = T::kHeadDim / 8;
    const KeyBlock<T>& block = smem.block;
    const int64_t first = t.offset(block.k_slot, block.first_token, block.kv_head);
    for (int i = threadIdx.x; i < T::kKeys * kChunks; i += T::kThreads) {
      const int row = i / kChunks, col = i % kChunks * 8;
      if (row < block.keys_left && col < t.shape[3]) put(row, col, first + row * t.stride[1] + col);
    }
  }
};

template <class T>
__global__ __launch_bounds__(T::kThreads, T::kBlocks) void backward(const __grid_constant__ Problem p,
                                                                    const __grid_constant__ BackwardWork work) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& smem = *reinterpret_cast<BackwardStorage<T>*>(shared);
  if (work.in_order) {
    if (threadIdx.x == 0) smem.ticket = atomicAdd(work.ticket, 1);
    __syncthreads();
  }
  Backward<T> backward(p, work, smem, ptx::uniform(work.in_order ? smem.ticket : static_cast<int>(blockIdx.x)));
  if (!backward.has_keys()) return;
  backward.walk();
  backward.store();
}

// ---- Launch.

// call(Shape{}) with the tile and the kind of mask as a type. Kernels that need many registers for a pair have the
// small tile, and serve whatever the small tile is asked for beyond simple masks.
template <class E, int D, class Call>
Status with_shape(const BackwardTile& tile, BackwardMask mask, Call call) {
  constexpr BackwardTile kLarge = backward_tile(D, int64_t{227} << 10), kSmall = backward_tile(D, int64_t{99} << 10);
  const bool large = tile.shared_kbytes == kLarge.shared_kbytes;
  if (mask == BackwardMask::general) return call(BackwardShape<E, kSmall, BackwardMask::general>{});
  if (mask == BackwardMask::ranges) return call(BackwardShape<E, kLarge, BackwardMask::ranges>{});
  if (large) return call(BackwardShape<E, kLarge, BackwardMask::simple>{});
  return call(BackwardShape<E, kSmall, BackwardMask::simple>{});
}

template <class E, int D>
Status BackwardUnit<E, D>::load(const Problem& p, const BackwardTile& tile, BackwardMask mask) {
  return load_passes<E, D>(p, [&] {
    return with_shape<E, D>(tile, mask, [](auto shape) {
      using T = decltype(shape);
      return cuda::load("v2's backward", backward<T>, sizeof(BackwardStorage<T>));
    });
  });
}

template <class E, int D>
Status BackwardUnit<E, D>::launch(const Problem& p, const BackwardTile& tile, BackwardMask mask,
                                  const BackwardWork& work, void* stream) {
  return launch_passes<E, D>(p, work, stream, [&] {
    return with_shape<E, D>(tile, mask, [&](auto shape) {
      using T = decltype(shape);
      const Grid keys{.blocks = p.batch * p.heads_kv * work.key_blocks,
                      .threads = T::kThreads,
                      .shared_bytes = sizeof(BackwardStorage<T>)};
      return cuda::launch("v2's backward", backward<T>, keys, stream, p, work);
    });
  });
}

}  // namespace tilewise::cuda::v2
