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
#include "cuda/v2/backward_turns.cuh"

namespace tilewise::cuda::v2 {

template <class T>
class Backward {
  using F = Fragments<T>;
  using E = typename T::Element;
  using Storage = BackwardStorage<T>;
  using Walk = std::conditional_t<T::kRanges, RangeWalk<T>, SimpleWalk<T>>;
  static_assert(sizeof(Storage) <= T::kSharedBytes);
  static constexpr int kStageBytes = sizeof(typename Storage::Stage), kDoutAt = sizeof(Storage::Stage::q);
  static constexpr int kKvBytes = sizeof(Storage::k);
  static constexpr int kProbBytes = sizeof(Storage::p), kDsBytes = sizeof(Storage::ds[0]);
  static constexpr int kSteps = T::kHeadDim / 16;                     // of mma along a row of Q, K, V or dO
  static constexpr int kRoundBytes = T::kOwnQueries * T::kPitch * 2;  // of Q or dO
  static constexpr int kCopies = BackwardCopies<T>::kCopies;
  static constexpr int kDepth = (T::kAlone ? T::kOwnQueries : T::kQueries) / 16;        // of P^T dO and dS^T Q
  static constexpr int kScoreRows = T::kOwnKeys / 16, kScoreCols = T::kOwnQueries / 8;  // tiles of S^T
  static constexpr int kDqRows = T::kDqRows / 16, kDqTiles = kDqRows * T::kDqCols / 8;

  const Problem& p;
  const BackwardWork& work;
  Storage& smem;
  const KeyBlock<T> block;
  Walk blocks{p, work, block};
  UsedKeys used;
  const int lane = keep<T>(cuda::lane()), warp = ptx::uniform(cuda::warp());
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

  // The warp's accumulators: [16 rows][8 columns] of the tile, 4 elements a lane.
  float dk[2][T::kOwnCols / 8][4] = {}, dv[2][T::kOwnCols / 8][4] = {};  // [32 keys][own columns]
  float s[kScoreRows][kScoreCols][4], dp[kScoreRows][kScoreCols][4];     // [own keys][own queries]; s: later P^T
  float dq[kDqRows][T::kDqCols / 8][4];                                  // [own queries][own columns] of dQ
  uint32_t p_part[kDepth][2][4], ds_part[kDepth][2][4];  // [queries / 16][32 keys / 16] alone: operands of dV and dK

  QueryBlock here = blocks.first(block), next, last;  // in work, to be copied, before it
  QueryBlock owed;                                    // in order and late: whose turn is still to be passed
  const Turns<T> turns{work, block.work_row, warp, lane};
  BackwardCopies<T> copies{p, work, smem, block};

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

  // S^T, dP^T and P^T where two warps divide the products: each makes its own for the queries of both, and gives the
  // other what that one needs, through where that one writes P and dS later.
  TILEWISE_DEVICE void divide_products(int index, int rows_left) {
    constexpr int kCols = T::kOwnQueries / 16, kTiles = 2 * kCols, kMultiplies = kSteps * 2 * kCols;
    const int stage = index % T::kStages, next_stage = (index + 1) % T::kStages;
    const bool makes_dp = part % 2;
    const int to_other = makes_dp ? -T::kOwnQueries : T::kOwnQueries;
    const uint32_t mine = q_rows + stage * kStageBytes + makes_dp * kDoutAt, theirs = mine + to_other * T::kPitch * 2;
    float made[2][2 * kTiles][4];  // [32 keys][queries]: its own, then the other's
    clear(made);
    if (index == 0 && makes_dp) smem.full[0].wait(0);
    multiply<E, kSteps, 2 * kCols, 2, false>(
        made, F::template a_of<2, T::kPitch>(k_as_a + makes_dp * kKvBytes),
        [=](int step, int col, uint32_t(&b)[4]) {
          ptx::ldmatrix(b, (col < kCols ? mine : theirs) + (col % kCols * 16 * T::kPitch + step * 16) * 2);
        },
        [&](int step, int col) {
          const int i = step * 2 * kCols + col;
          copies.some(i * kCopies / kMultiplies, (i + 1) * kCopies / kMultiplies, next_stage, rows_left);
        });
    smem.full[next_stage].arrive_when_copied();
    if (index == 0 && !makes_dp) smem.full[0].wait(0);

    make_room(index);
    const auto* take = reinterpret_cast<const float4*>(&smem.p[group * 32 + lane][score_query]);
    auto* const give = reinterpret_cast<float4*>(&smem.p[group * 32 + lane][score_query + to_other]);
    const int ds_at = (kProbBytes + index % T::kDsBuffers * kDsBytes) / 16;
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const float* x = made[i / kTiles][kTiles + i % kTiles];
      give[i / kTiles * ds_at + i % kTiles] = {x[0], x[1], x[2], x[3]};
    }
    ptx::named_sync(1 + T::kWarps / T::kParts + warp / 2, 64);
    const float* lse = &smem.stage[stage].lse[query_of(0)];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int m = i / kTiles, n = i % kTiles;
      const float4 given = take[m * ds_at + n];
      const float other[4] = {given.x, given.y, given.z, given.w};
      const float2 l = *reinterpret_cast<const float2*>(lse + n * 8);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float own = made[m][n][j];
        dp[m][n][j] = makes_dp ? own : other[j];
        s[m][n][j] = ptx::exp2(fmaf(makes_dp ? other[j] : own, work.scale_log2, j % 2 ? -l.y : -l.x));
      }
    }
    __syncwarp();
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
          live = live_keys_of(p, work, block, here, query + n * 8 + j);
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

  TILEWISE_DEVICE void sync_group() { ptx::named_sync(1 + group, 32 * T::kParts); }
  TILEWISE_DEVICE void arrive(ptx::Barrier& barrier) {
    __syncwarp();
    if (lane == 0) barrier.arrive();
  }

  // Until all warps have read the dS that is overwritten, and those of the group the P.
  TILEWISE_DEVICE void make_room(int index) {
    if (index >= T::kDsBuffers && work.wants_dq) {
      smem.ds_free[index % T::kDsBuffers].wait(index / T::kDsBuffers - 1 & 1);
    }
    if (!T::kAlone) sync_group();
  }

  // store(where) to the warp's part of dS^T of block number `index`.
  template <class Store>
  TILEWISE_DEVICE void hand_over(int index, int round, Store store) {
    const int buffer = index % T::kDsBuffers;
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

  // sum += x dO or x Q, from `rows` on; in its shadow also(first, end) makes some of the additions to dQ.
  template <class Operand, class Also>
  TILEWISE_DEVICE void add_product(float (&sum)[2][T::kOwnCols / 8][4], Operand x, uint32_t rows, Also also) {
    constexpr int kCols = T::kOwnCols / 16, kMultiplies = kDepth * kCols;
    multiply<E, kDepth, kCols, 2, false>(sum, x, F::cols_of(rows), [&](int step, int col) {
      const int i = step * kCols + col;
      also(i * kDqTiles / kMultiplies, (i + 1) * kDqTiles / kMultiplies);
    });
  }
  // dV += P^T dO
  template <class Also>
  TILEWISE_DEVICE void make_dv(int stage, int round, Also also) {
    add_product(dv, F::operand(p_part, p_as_a), q_cols + stage * kStageBytes + round * kRoundBytes + kDoutAt, also);
  }
  // dK += dS^T Q
  template <class Also>
  TILEWISE_DEVICE void make_dk(int stage, int round, int ds_buffer, Also also) {
    add_product(dk, F::operand(ds_part, ds_as_a + ds_buffer * kDsBytes),
                q_cols + stage * kStageBytes + round * kRoundBytes, also);
  }

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
    if (!T::kAlone && index == 0) {
      smem.first_full.wait(0);  // without V and dO
    } else {
      smem.full[stage].wait(index / T::kStages & 1);
    }
    if constexpr (T::kStages > 1) {
      // All warps are done with the block that the next copies overwrite.
      if (index + 1 >= T::kStages) smem.free[next_stage].wait((index + 1) / T::kStages - 1 & 1);
      if (has(next)) return copies.begin(next, next_stage, blocks.is_whole(block, next));
      if (T::kRanges) copies.begin_none();
    }
    return 0;
  }
  // P and dS.
  TILEWISE_DEVICE void make_ds(int index) {
    const int stage = index % T::kStages;
    const bool whole = blocks.is_whole(block, here);
    const int rows_left = begin_block(index, whole);
    if constexpr (T::kDivides) {
      divide_products(index, rows_left);
    } else {
      make_scores(stage, 0, (index + 1) % T::kStages, rows_left);
      if (index == 0) smem.full[0].wait(0);
      make_probabilities(stage, 0);
    }
    if constexpr (T::kTerms) {
      finish_pairs(stage, whole);
    } else if (__builtin_expect(!whole, 0)) {
      mask(0, 0);
    }
    if (!T::kDivides) make_room(index);
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
        if (round == 0) make_room(index);
        hand_over_zeros(index, round);
        continue;
      }
      make_scores(stage, round, next_stage, rows_left);
      make_probabilities(stage, round);
      if (__builtin_expect(!whole, 0)) mask(0, round);
      if (round == 0) make_room(index);
      hand_over(index, round);
      make_dv(stage, round, [](int, int) {});
      make_dk(stage, round, 0, [](int, int) {});
    }
    arrive(smem.free[stage]);
  }

  // dQ of block number `index`, and the turn to add to it.
  TILEWISE_DEVICE void sum_dq(int index, const QueryBlock& b) {
    const int turn = work.in_order ? turns.look(b) : 0;
    make_dq(index);
    if (work.in_order) turns.await(b, blocks.turn(T::kAlone ? block : smem.block, b), turn);
  }

  // Blocks of queries one after the other. dQ waits for the dS of all warps: during the next block, where there is
  // memory for two dS, so that no warp waits long.
  TILEWISE_DEVICE void walk_late() {
    for (int i = 0;; ++i) {
      if (has(here)) make_ds(i);
      if (work.in_order && i > 1) turns.pass(owed);  // its additions have had time to arrive
      const QueryBlock dq_of = i > 0 ? last : here;
      if (work.wants_dq) {
        if (i > 0) {
          sum_dq(i - 1, dq_of);
        } else {
          clear(dq);
        }
      }
      if (!has(here)) break;
      sync_group();
      if (work.wants_dq) {
        float* const sum = dq_sum_of(dq_of);
        make_dv(i % T::kStages, 0, [&](int first, int end) { add_dq(sum, first, end); });
      } else {
        make_dv(i % T::kStages, 0, [](int, int) {});
      }
      make_dk(i % T::kStages, 0, i % T::kDsBuffers, [](int, int) {});
      arrive(smem.free[i % T::kStages]);
      owed = dq_of, last = here, here = next;
    }
    if (work.wants_dq) add_dq(dq_sum_of(last), 0, kDqTiles);
    if (work.in_order) turns.pass(last);
  }
  TILEWISE_DEVICE void walk_at_once() {
    for (int i = 0; has(here); ++i) {
      make_ds(i);
      if (work.in_order && i > 0) turns.pass(last);
      sync_group();
      make_dv(i % T::kStages, 0, [](int, int) {});
      if (work.wants_dq) {
        sum_dq(i, here);
        float* const sum = dq_sum_of(here);
        make_dk(i % T::kStages, 0, 0, [&](int first, int end) { add_dq(sum, first, end); });
      } else {
        make_dk(i % T::kStages, 0, 0, [](int, int) {});
      }
      arrive(smem.free[i % T::kStages]);
      last = here, here = next;
    }
    if (work.in_order) turns.pass(last);
  }
  TILEWISE_DEVICE void walk_alone() {
    for (int i = 0; has(here); ++i) {
      make_gradients(i);
      if (work.wants_dq) {
        if (work.in_order && i > 0) turns.pass(last);
        sum_dq(i, here);
        add_dq(dq_sum_of(here), 0, kDqTiles);
      }
      last = here, here = next;
    }
    if (work.in_order) turns.pass(last);
  }

 public:
  TILEWISE_DEVICE Backward(const Problem& problem, const BackwardWork& w, Storage& storage, int index)
      : p(problem), work(w), smem(storage), block(problem, w, index, Walk::goes_up(problem, w)) {}

  TILEWISE_DEVICE bool has(const QueryBlock& b) const { return b.head < block.end_head; }
  TILEWISE_DEVICE bool has_keys() const { return block.keys_left > 0; }

  TILEWISE_DEVICE void walk() {
    if (threadIdx.x == 0) {
      smem.first_full.init(T::kThreads);
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
    copies.first(used, here, blocks.is_whole(block, here));
    if constexpr (T::kAlone) {
      walk_alone();
    } else if constexpr (T::kLateDq) {
      walk_late();
    } else {
      walk_at_once();
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
  Backward<T> backward(p, work, smem, draw_key_block(work, smem.ticket));
  if (!backward.has_keys()) return;
  backward.walk();
  backward.store();
}

}  // namespace tilewise::cuda::v2
