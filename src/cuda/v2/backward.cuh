// FlashAttention-2 backward with the instructions of sm_80. A thread block owns a block of keys of a kv head and walks
// over the blocks of queries of all query heads that read it, so that nothing but dQ is summed across thread blocks:
//
//   S^T = K Q^T        P^T = exp2(S^T - LSE)           dV += P^T dO
//   dP^T = V dO^T      dS^T = P^T (dP^T - delta)       dK += dS^T Q       dQ += dS K
//
// S^T and dP^T stay in registers. dS^T goes through shared memory once, as dQ wants that of all keys; P^T does too,
// unless a warp has its keys alone.
#pragma once

#include "cuda/v2/backward_copies.cuh"
#include "cuda/v2/backward_pairs.cuh"
#include "cuda/v2/backward_rows.cuh"
#include "cuda/v2/backward_shape.cuh"
#include "cuda/v2/backward_store.cuh"

namespace tilewise::cuda::v2 {

template <class T>
class Backward {
  using F = Fragments<T>;
  using E = typename T::Element;
  using Storage = BackwardStorage<T>;
  using Walk = std::conditional_t<T::kRanges, RangeWalk<T>, SimpleWalk<T>>;
  using Copies = BackwardCopies<T>;
  static_assert(sizeof(Storage) <= T::kSharedBytes);
  static constexpr int kStageBytes = sizeof(typename Storage::Stage), kDoutAt = sizeof(Storage::Stage::q);
  static constexpr int kKvBytes = sizeof(Storage::k);
  static constexpr int kProbBytes = sizeof(Storage::p), kDsBytes = sizeof(Storage::ds[0]);
  static constexpr int kSteps = T::kHeadDim / 16;                     // of mma along a row of Q, K, V or dO
  static constexpr int kRoundBytes = T::kOwnQueries * T::kPitch * 2;  // of Q or dO
  static constexpr int kCopies = Copies::kCopies;
  static constexpr int kDepth = (T::kAlone ? T::kOwnQueries : T::kQueries) / 16;        // of P^T dO and dS^T Q
  static constexpr int kScoreRows = T::kOwnKeys / 16, kScoreCols = T::kOwnQueries / 8;  // tiles of S^T
  static constexpr int kDqRows = T::kDqRows / 16, kDqTiles = kDqRows * T::kDqCols / 8;

  const Problem& p;
  const BackwardWork& work;
  Storage& smem;
  const KeyBlock<T> block;
  Walk blocks{p, work, block};
  UsedKeys used;
  const int lane = keep<T>(threadIdx.x % 32), warp = ptx::uniform(threadIdx.x / 32);
  const int group = warp / T::kParts, part = warp % T::kParts;  // warps of a group share 32 keys
  const int score_key = group * 32 + part / (T::kQueries / T::kOwnQueries) * T::kOwnKeys;
  const int score_query = part % (T::kQueries / T::kOwnQueries) * T::kOwnQueries;
  const int dq_row = warp % T::kDqRowParts * T::kDqRows, dq_col = warp / T::kDqRowParts * T::kDqCols;

  // Where a lane's fragments lie. A: 16 rows, then the same 8 columns further. B of rows: 8 rows x 16 columns, then the
  // next 8 rows. B of columns (transposed) reads like A, transposed A like B of rows.
  const int a_row = lane % 16, a_col = lane / 16 * 8, b_row = lane % 8 + lane / 16 * 8, b_col = lane / 8 % 2 * 8;
  const uint32_t a_at = ptx::smem_addr(&smem.k[a_row][a_col]);
  const uint32_t k_as_a = keep<T>(a_at + score_key * T::kPitch * 2), v_as_a = k_as_a + kKvBytes;
  const uint32_t k_cols = keep<T>(a_at + dq_col * 2);
  const uint32_t q_cols = keep<T>(a_at + 2 * kKvBytes + part * T::kOwnCols * 2);
  const uint32_t q_rows = keep<T>(ptx::smem_addr(&smem.stage[0].q[score_query + b_row][b_col]));
  const uint32_t p_as_a = keep<T>(ptx::smem_addr(&smem.p[group * 32 + a_row][a_col])), ds_as_a = p_as_a + kProbBytes;
  const uint32_t ds_as_q = keep<T>(ptx::smem_addr(&smem.ds[0][b_row][dq_row + b_col]));

  float dk[2][T::kOwnCols / 8][4] = {}, dv[2][T::kOwnCols / 8][4] = {};
  float s[kScoreRows][kScoreCols][4], dp[kScoreRows][kScoreCols][4];
  float dq[kDqRows][T::kDqCols / 8][4];
  uint32_t p_part[kDepth][2][4], ds_part[kDepth][2][4];  // alone: operands of dV and dK

  QueryBlock here = blocks.first(block), next, last;  // in work, to be copied, before it
  QueryBlock owed;                                    // in order: whose turn is still to be passed
  Copies copies{p, work, smem, block};

  // ---- The steps of a block of queries.

  // Of the lane's first pair in the block.
  TILEWISE_DEVICE int query_of(int round) const { return score_query + round * T::kOwnQueries + lane % 4 * 2; }

  // S^T = K Q^T; the copies of the next block are spread over it.
  TILEWISE_DEVICE void make_scores(int stage, int round, int next_stage, int rows_left) {
    constexpr int kMultiplies = kSteps * T::kOwnQueries / 16, kAll = kMultiplies * T::kRounds;
    clear(s);
    multiply<E, kSteps, T::kOwnQueries / 16, 2, false>(
        s, F::template a_of<kScoreRows, T::kPitch>(k_as_a),
        F::rows_of(q_rows + stage * kStageBytes + round * kRoundBytes), [&](int step, int col) {
          const int i = round * kMultiplies + step * (T::kOwnQueries / 16) + col;
          if (T::kStages > 1) copies.some(i * kCopies / kAll, (i + 1) * kCopies / kAll, next_stage, rows_left);
        });
    if (T::kStages > 1 && round == T::kRounds - 1) smem.full[next_stage].arrive_when_copied();
  }

  // Instead, where all pairs of the round are dead.
  TILEWISE_DEVICE void skip_scores(int round, int next_stage, int rows_left) {
    copies.some(round * kCopies / T::kRounds, (round + 1) * kCopies / T::kRounds, next_stage, rows_left);
    if (round == T::kRounds - 1) smem.full[next_stage].arrive_when_copied();
  }
  // Whether they are, as far as that is plain arithmetic.
  TILEWISE_DEVICE bool is_dead(int round) const {
    const int last = here.m * T::kQueries + (round + 1) * T::kOwnQueries - 1;
    return !T::kRanges && (score_key >= used.end || (p.causal && score_key + block.diagonal > last));
  }

  // dP^T = V dO^T, and in its shadow P^T = exp2(S^T - LSE), unless scores have terms.
  TILEWISE_DEVICE void make_probabilities(int stage, int round) {
    constexpr int kMultiplies = kSteps * T::kOwnQueries / 16, kPairs = kScoreRows * 2 * kScoreCols;
    const float* lse = &smem.stage[stage].lse[query_of(round)];
    auto probability = [&](int r, int n) {  // of key lane / 4 + 8 r, the pair of queries number n
      const float2 l = *reinterpret_cast<const float2*>(lse + n * 8);
      float* const x = &s[r / 2][n][r % 2 * 2];
      x[0] = ptx::exp2(fmaf(x[0], work.scale_log2, -l.x));
      x[1] = ptx::exp2(fmaf(x[1], work.scale_log2, -l.y));
    };
    clear(dp);
    multiply<E, kSteps, T::kOwnQueries / 16, 2, false>(
        dp, F::template a_of<kScoreRows, T::kPitch>(v_as_a),
        F::rows_of(q_rows + stage * kStageBytes + round * kRoundBytes + kDoutAt), [&](int step, int col) {
          const int i = step * (T::kOwnQueries / 16) + col;
#pragma unroll
          for (int j = i * kPairs / kMultiplies; j < (i + 1) * kPairs / kMultiplies; ++j) {
            if (!T::kTerms) probability(j % (2 * kScoreRows), j / (2 * kScoreRows));
          }
        });
  }

  // S = `dead` where a key is dead.
  TILEWISE_DEVICE void mask(float dead, int round) {
    const int query = query_of(round), key = score_key + lane / 4;
#pragma unroll
    for (int n = 0; n < kScoreCols; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int2 live = {0, used.end};
        if (T::kRanges) {
          live = copies.live_keys_of(here, query + n * 8 + j);
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
    const int query = query_of(0);
    PairTerms<kScoreRows, kScoreCols> terms(p, smem.sequence, here.head, block.first_key + score_key + lane / 4,
                                            here.m * T::kQueries + query);
    terms.finish(s, dp, &smem.stage[stage].delta[query]);
    if (!whole) mask(-INFINITY, 0);
    terms.exponentiate(s, dp, &smem.stage[stage].lse[query]);
  }

  TILEWISE_DEVICE void arrive(ptx::Barrier& barrier) {
    __syncwarp();
    if (lane == 0) barrier.arrive();
  }

  // store(where) to the warp's part of dS^T of block number `index`, once all warps have read what was there before.
  template <class Store>
  TILEWISE_DEVICE void hand_over(int index, int round, Store store) {
    const int buffer = index % T::kDsBuffers;
    if (round == 0 && index >= T::kDsBuffers && work.wants_dq) {
      smem.ds_free[buffer].wait(index / T::kDsBuffers - 1 & 1);
    }
    store(ptx::smem_addr(&smem.ds[buffer][score_key + lane / 4][query_of(round)]));
    if (round == T::kRounds - 1) arrive(smem.ds_full[buffer]);
  }
  // Where the pair of queries n of key row r lies in it.
  static TILEWISE_DEVICE int offset_of(int r, int n) { return (r * 8 * T::kProbPitch + n * 8) * 2; }

  // dS^T = P^T (dP^T - delta), unless that is done. P^T goes to shared memory too if other warps need it.
  TILEWISE_DEVICE void hand_over(int index, int round) {
    const float* delta = &smem.stage[index % T::kStages].delta[query_of(round)];
    const uint32_t p_to = ptx::smem_addr(&smem.p[T::kAlone ? 0 : score_key + lane / 4][query_of(round)]);
    hand_over(index, round, [&](uint32_t ds_to) {
#pragma unroll
      for (int n = 0; n < kScoreCols; ++n) {
        const float2 d = *reinterpret_cast<const float2*>(delta + n * 8);
#pragma unroll
        for (int r = 0; r < 2 * kScoreRows; ++r) {
          const float *prob = &s[r / 2][n][r % 2 * 2], *grad = &dp[r / 2][n][r % 2 * 2];
          const uint32_t packed = ptx::pack<E>(prob[0], prob[1]);
          const uint32_t ds = T::kTerms ? ptx::pack<E>(grad[0], grad[1])
                                        : ptx::pack<E>(prob[0] * (grad[0] - d.x), prob[1] * (grad[1] - d.y));
          if constexpr (T::kAlone) {  // two tiles of accumulators are an operand
            p_part[n / 2][r / 2][n % 2 * 2 + r % 2] = packed;
            ds_part[n / 2][r / 2][n % 2 * 2 + r % 2] = ds;
          } else {
            ptx::store_shared(p_to + offset_of(r, n), packed);
          }
          ptx::store_shared(ds_to + offset_of(r, n), ds);
        }
      }
    });
  }
  // Instead, where all pairs of the round are dead.
  TILEWISE_DEVICE void hand_over_zeros(int index, int round) {
    hand_over(index, round, [&](uint32_t ds_to) {
#pragma unroll
      for (int i = 0; i < 2 * kScoreRows * kScoreCols; ++i) {
        ptx::store_shared(ds_to + offset_of(i / kScoreCols, i % kScoreCols), 0);
      }
    });
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
    arrive(smem.ds_free[buffer]);
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
    const int mine = blocks.turn(T::kAlone ? block : smem.block, b);
    while (ptx::uniform(seen) != mine) seen = ptx::load_relaxed(turn_of(b));
  }
  TILEWISE_DEVICE void pass_turn(const QueryBlock& b) {
    __syncwarp();
    if (lane == 0) ptx::add_release(turn_of(b), 1);
  }

  // The operand that lies in registers if the warp is alone, in shared memory otherwise.
  static TILEWISE_DEVICE auto operand(const uint32_t (&x)[kDepth][2][4], uint32_t at) {
    if constexpr (T::kAlone) {
      return [&x](int step, uint32_t(&a)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = x[step][i / 4][i % 4];
      };
    } else {
      return F::template a_of<2, T::kProbPitch>(at);
    }
  }
  // dV += P^T dO, and in its shadow the additions to dQ: also(first, last) makes some of them.
  template <class Also>
  TILEWISE_DEVICE void make_dv(int stage, int round, Also also) {
    constexpr int kCols = T::kOwnCols / 16, kMultiplies = kDepth * kCols;
    multiply<E, kDepth, kCols, 2, false>(dv, operand(p_part, p_as_a),
                                         F::cols_of(q_cols + stage * kStageBytes + round * kRoundBytes + kDoutAt),
                                         [&](int step, int col) {
                                           const int i = step * kCols + col;
                                           also(i * kDqTiles / kMultiplies, (i + 1) * kDqTiles / kMultiplies);
                                         });
  }
  // dK += dS^T Q
  TILEWISE_DEVICE void make_dk(int stage, int round, int ds_buffer) {
    multiply<E, kDepth, T::kOwnCols / 16, 2, false>(dk, operand(ds_part, ds_as_a + ds_buffer * kDsBytes),
                                                    F::cols_of(q_cols + stage * kStageBytes + round * kRoundBytes),
                                                    [](int, int) {});
  }

  TILEWISE_DEVICE void sync_group() { ptx::named_sync(1 + group, 32 * T::kParts); }

  // Block number `index` of the walk has landed, and the copies of the next one begin. How many rows that has.
  // `whole`: of this one, as the walk knows no more once it has found the next.
  TILEWISE_DEVICE int begin_block(int index, bool whole) {
    const int stage = index % T::kStages, next_stage = (index + 1) % T::kStages;
    next = blocks.after(block, here);
    if constexpr (T::kStages == 1) {
      if (index > 0) {
        smem.free[0].wait(index - 1 & 1);
        copies.all(here, 0, whole);
      }
    }
    smem.full[stage].wait(index / T::kStages & 1);
    if constexpr (T::kStages > 1) {
      // All warps are done with the block that the next copies overwrite.
      if (index + 1 >= T::kStages) smem.free[next_stage].wait((index + 1) / T::kStages - 1 & 1);
      if (has(next)) return copies.begin(next, next_stage, blocks.is_whole(block, next));
    }
    return 0;
  }
  // P and dS.
  TILEWISE_DEVICE void make_ds(int index) {
    const int stage = index % T::kStages;
    const bool whole = blocks.is_whole(block, here);
    const int rows_left = begin_block(index, whole);
    make_scores(stage, 0, (index + 1) % T::kStages, rows_left);
    make_probabilities(stage, 0);
    if constexpr (T::kTerms) {
      finish_pairs(stage, whole);
    } else if (__builtin_expect(!whole, 0)) {
      mask(0, 0);
    }
    sync_group();  // it is done with the old P
    hand_over(index, 0);
  }

  // Alone: P, dS, dV and dK, for which the warp needs no other.
  TILEWISE_DEVICE void make_gradients(int index) {
    const int stage = index % T::kStages, next_stage = (index + 1) % T::kStages;
    const bool whole = blocks.is_whole(block, here);
    const int rows_left = begin_block(index, whole);
#pragma unroll
    for (int round = 0; round < T::kRounds; ++round) {
      if (!whole && is_dead(round)) {
        skip_scores(round, next_stage, rows_left);
        hand_over_zeros(index, round);
        continue;
      }
      make_scores(stage, round, next_stage, rows_left);
      make_probabilities(stage, round);
      if (__builtin_expect(!whole, 0)) mask(0, round);
      hand_over(index, round);
      make_dv(stage, round, [](int, int) {});
      make_dk(stage, round, 0);
    }
    arrive(smem.free[stage]);
  }

  // Blocks of queries one after the other. dQ waits for the dS of all warps: late, so that it need not wait long.
  TILEWISE_DEVICE void walk_together() {
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
        make_dv(i % T::kStages, 0, [&](int first, int last) { add_dq(sum, first, last); });
      } else {
        make_dv(i % T::kStages, 0, [](int, int) {});
      }
      make_dk(i % T::kStages, 0, i % T::kDsBuffers);
      arrive(smem.free[i % T::kStages]);
      owed = dq_of, last = here, here = next;
    }
    if (T::kLateDq && work.wants_dq) add_dq(dq_sum_of(last), 0, kDqTiles);
    if (work.in_order) pass_turn(last);
  }
  TILEWISE_DEVICE void walk_alone() {
    for (int i = 0; has(here); ++i) {
      make_gradients(i);
      if (work.wants_dq) {
        if (work.in_order && i > 0) pass_turn(owed);
        const int turn = work.in_order ? ptx::load_relaxed(turn_of(here)) : 0;
        make_dq(i);
        if (work.in_order) await_turn(here, turn);
        add_dq(dq_sum_of(here), 0, kDqTiles);
      }
      owed = here, here = next;
    }
    if (work.in_order) pass_turn(owed);
  }

 public:
  TILEWISE_DEVICE Backward(const Problem& problem, const BackwardWork& workspace, Storage& storage, int index)
      : p(problem),
        work(workspace),
        smem(storage),
        block(problem, workspace, index, Walk::goes_up(problem, workspace)) {}

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
    copies.load_keys(used);
    copies.all(here, 0, blocks.is_whole(block, here));
    if constexpr (T::kAlone) {
      walk_alone();
    } else {
      walk_together();
    }
    ptx::cp_async_wait_all();
    __syncthreads();
  }

  TILEWISE_DEVICE void store() const { StoreOfKeys<T>(p, smem, warp, lane)(dk, dv); }
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
  constexpr BackwardTile kLargeOfRanges = backward_tile(D, int64_t{227} << 10, false);
  const bool large = tile.shared_kbytes == kLarge.shared_kbytes;
  if (mask == BackwardMask::general) return call(BackwardShape<E, kSmall, BackwardMask::general>{});
  if (mask == BackwardMask::ranges) return call(BackwardShape<E, kLargeOfRanges, BackwardMask::ranges>{});
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
