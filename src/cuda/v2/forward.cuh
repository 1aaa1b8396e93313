// FlashAttention-2 forward (Dao, 2023) with instructions of sm_80: cp.async, ldmatrix, mma.sync, mbarrier. Queries
// stay, blocks of keys pass through a ring in shared memory that all warps fill together; mbarriers let the warps drift
// apart, so that the softmax of one meets the mma of another.
//
// This file serves what is fast: no mask or the causal one, head sizes that are tiles.
#pragma once

#include <climits>

#include "cuda/common/element.cuh"
#include "cuda/common/softmax.cuh"
#include "cuda/common/store.cuh"
#include "cuda/common/tile.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/v2/forward_storage.cuh"

namespace tilewise::cuda::v2 {

template <class T>
TILEWISE_DEVICE void forward_block(const Problem& p, const ForwardSchedule& plan) {
  using E = typename T::Element;
  using KeyCopy = RowCopy<T, T::kN>;
  constexpr int kSplit = T::kSplit, kDepth = T::kHeadDim / 16, kAhead = T::c.ahead, kStages = T::c.stages;
  constexpr int kEarly = kStages / 2;  // blocks that a copy comes before its use
  constexpr int kPasses = KeyCopy::kPasses;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& smem = *reinterpret_cast<SharedStorage<T>*>(raw);
  constexpr int kStageBytes = sizeof(smem.stage[0]), kV = sizeof(smem.stage[0].k);  // V lies behind its K
  const int warp = T::kCausal ? ptx::uniform(cuda::warp()) : cuda::warp(), lane = cuda::lane();
  const int group = warp / kSplit, part = warp % kSplit;
  const int row = group * 32 + lane / 4;  // in the tile; the thread's others are 8, 16 and 24 further

  // Where this lane's ldmatrix reads: A fragments of Q (and P) and transposed B fragments of V alike, B fragments of K.
  // Where its copies go.
  const uint32_t a_at = ptx::smem_addr(&smem.q[lane % 16][lane / 16 * 8]);
  const uint32_t q_at = a_at + group * 32 * T::kPitch * 2;
  const uint32_t v_from_a = a_at + part * T::kOwnCols * 2 + uint32_t(sizeof(smem.q)) + kV;
  const uint32_t v_at = T::kHeadDim == 64 && T::kStreams ? ptx::pin(v_from_a) : v_from_a;  // registers are short there
  const uint32_t k_at =
      ptx::smem_addr(&smem.stage[0].k[part * T::kOwnKeys + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  const uint32_t to = ptx::smem_addr(&smem.stage[0].k[KeyCopy::row()][KeyCopy::col()]);

  float s[2][T::kOwnKeys / 8][4];                            // [32 rows][own keys] scores, then probabilities
  float o[2][T::kOwnCols / 8][4];                            // [32 rows][own columns]
  uint32_t q_frags[T::c.q_in_registers ? kDepth : 1][2][4];  // [head size / 16][32 rows]
  SoftmaxRows<2> rows;
  const int first_index = T::kStreams && T::kCausal ? int(blockIdx.x) * plan.run : int(blockIdx.x);
  int index = first_index, n, first_masked, first_dead;  // tile, block of keys at work
  int copy_index = first_index, copy_n;                  // those to copy
  bool no_key_seen;                                      // of this tile
  const E *k, *v;                                        // [kN][D], [kN][Dv] the thread's place in the block to copy
  unsigned count = 0;                                    // blocks done

  // ---- The tile at hand, and its sequence.
  auto own_work = [&]() -> ForwardWork& { return smem.work[ptx::thread_index() / 32]; };
  auto lengths = [&] { return T::kLengths ? smem.lengths : TileLengths{plan.rows, plan.keys, plan.diagonal}; };
  auto place_of_row = [&](const Tensor& t, const ForwardWork& work, int i) {
    return T::kLengths ? row_offset(t, smem.sequence, i, work.head) : t.offset(work.sequence, i, work.head);
  };
  auto place_of_lse = [&](const ForwardWork& work, int i) {
    return T::kLengths ? lse_offset(p.lse, smem.sequence, i, work.head) : p.lse.offset(work.sequence, work.head, i);
  };

  // ---- Queries.
  auto load_queries = [&](const ForwardWork& work) {  // by the warps that read them
    const int first = work.row_block * T::kM + group * 32, at = part * (32 / kSplit) + lane / 4;
    const int64_t stride = p.q.stride[1];
    const E* from = reinterpret_cast<const E*>(p.q.data) + place_of_row(p.q, work, first + at) + lane % 4 * 8;
    const int rows = lengths().rows;
    const uint32_t to = ptx::smem_addr(&smem.q[group * 32 + at][lane % 4 * 8]);
#pragma unroll
    for (int i = 0; i < 32 / kSplit; i += 8) {
#pragma unroll
      for (int c = 0; c < T::kHeadDim; c += 32) {
        ptx::cp_async_or_zero(to + (i * T::kPitch + c) * 2, from + i * stride + c, first + at + i < rows);
      }
    }
    ptx::cp_async_commit();  // a group, so that nobody waits for the keys and values behind them
  };
  auto load_q = [&](int step, uint32_t(&a)[2][4]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if constexpr (T::c.q_in_registers) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m][i] = q_frags[step][m][i];
      } else {
        ptx::ldmatrix(a[m], q_at + (m * 16 * T::kPitch + step * 16) * 2);
      }
    }
  };

  // ---- Copies of keys and values. The key blocks of all tiles of this thread block form one stream.
  auto next_tile = [&](int index) {  // plan.run in a row, then those that the other thread blocks leave
    if constexpr (!T::kStreams) return -1;
    const bool first_of_two = T::kCausal && plan.run == 2 && index % 2 == 0;
    const int next = first_of_two ? index + 1 : index + 1 + (int(gridDim.x) - 1) * (T::kCausal ? plan.run : 1);
    return next < plan.tiles ? next : -1;
  };
  auto place = [&](const Tensor& t, const ForwardWork& work) {
    const int j = copy_n * T::kN + KeyCopy::row(), head = plan.group.quotient(work.head);
    const int64_t at = T::kLengths ? key_offset(t, smem.sequence, j, head) : t.offset(work.sequence, j, head);
    return reinterpret_cast<const E*>(t.data) + at + KeyCopy::col();
  };
  auto seek_tile = [&] {  // to the last block of keys of tile copy_index
    const ForwardWork work = work_at<T>(plan, copy_index);
    copy_n = KeyBlocks<T>(lengths(), work.row_block).end - 1;
    k = place(p.k, work);
    v = place(p.v, work);
  };
  auto seek_next = [&] {
    if (copy_n > 0) {
      --copy_n;
      k = ptx::pin(k - T::kN * p.k.stride[1]);
      v = ptx::pin(v - T::kN * p.v.stride[1]);
    } else if (copy_index >= 0 && (copy_index = next_tile(copy_index)) >= 0) {
      seek_tile();
    }
  };
  auto rows_to_copy = [&] { return copy_index < 0 ? 0 : lengths().keys - copy_n * T::kN; };
  auto copy_k = [&](int pass, uint32_t to, int rows_left) { KeyCopy::pass(pass, to, k, p.k.stride[1], rows_left); };
  auto copy_v = [&](int pass, uint32_t to, int rows_left) {
    KeyCopy::pass(pass, to + kV, v, p.v.stride[1], rows_left);
  };
  // The copies of a block to come are spread over a multiplication, a few at a time.
  auto spread = [&](int i, int parts, auto&& copy) {
    constexpr int kCluster = kPasses % 2 ? 1 : 2;
    constexpr int kClusters = kPasses / kCluster;
#pragma unroll
    for (int j = i * kClusters / parts * kCluster; j < (i + 1) * kClusters / parts * kCluster; ++j) copy(j);
  };
  // Where a block lies and where the copies go that are issued beside it. They overwrite a block that all warps are
  // done with.
  struct Slot {
    unsigned stage, to_stage;
    uint32_t phase, free_phase;
    bool overwrite;
  };
  auto slot = [&]() -> Slot {
    const unsigned done = count, copied = done + kEarly;
    return {done % kStages, copied % kStages, done / kStages & 1, copied / kStages - 1 & 1, copied >= kStages};
  };

  // ---- S = Q K^T.
  auto compute_scores = [&] {
    const auto [stage, to_stage, phase, free_phase, overwrite] = slot();
    const uint32_t k_at_stage = k_at + stage * kStageBytes;
    smem.k_full[stage].wait(phase);
    if (overwrite) smem.k_free[to_stage].wait(free_phase);
    const int rows_left = rows_to_copy();
#pragma unroll
    for (int i = 0; i < T::kOwnKeys; ++i) s[i / (T::kOwnKeys / 2)][i / 4 % (T::kOwnKeys / 8)][i % 4] = 0.f;
    multiply<E, kDepth, T::kOwnKeys / 16, kAhead, false>(
        s, load_q,
        [&](int step, int col, uint32_t(&b)[4]) {
          ptx::ldmatrix(b, k_at_stage + (col * 16 * T::kPitch + step * 16) * 2);
        },
        [&](int step, int col) {
          spread(step * (T::kOwnKeys / 16) + col, kDepth * T::kOwnKeys / 16,
                 [&](int i) { copy_k(i, to + to_stage * kStageBytes, rows_left); });
        });
    smem.k_full[to_stage].arrive_when_copied();
    __syncwarp();
    if (lane == 0) smem.k_free[stage].arrive();
  };

  // ---- P = softmax(S).
  auto pair_sync = [&] { ptx::named_sync(1 + group, 32 * kSplit); };
  auto combine = [&](float(&x)[4], auto&& op) {  // over the warps that share the rows
    if constexpr (kSplit > 1) {
      pair_sync();
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (lane % 4 == 0) smem.pair.row[warp][lane / 4 + r * 8] = x[r];
      }
      pair_sync();
#pragma unroll
      for (int r = 0; r < 4; ++r) x[r] = op(x[r], smem.pair.row[warp ^ 1][lane / 4 + r * 8]);
    }
  };
  auto raise_reference = [&] {
    const bool fresh = T::kCausal ? no_key_seen : n == (plan.keys - 1) / T::kN;
    bool raise = T::kCausal && fresh;  // on the diagonal there are rows without a score above 0
    if (!raise) {
      raise = rows.may_raise(s, plan.scale.quick, fresh);
      raise = kSplit > 1 ? ptx::named_or(1 + group, 32 * kSplit, raise) : __any_sync(~0u, raise);
    }
    if (__builtin_expect(raise, 0)) {
      float top[4];
      rows.find_tops(top, s, plan.scale);
      combine(top, [](float a, float b) { return fmaxf(a, b); });
      rows.raise(top, s, o, fresh, smem.shifts[ptx::thread_index()], plan.scale);
    } else {
      rows.keep_reference();
    }
    no_key_seen = false;
  };
  // Probabilities number from..to of the 16 that a thread has of each 16 keys, in place.
  auto exponentiate = [&](int from, int to) {
#pragma unroll
    for (int i = from; i < to; ++i) {
      const int r = i / 8 % 2 * 2 + i / 2 % 2;
      float& x = s[i / 8 % 2][2 * (i / 16) + i / 4 % 2][i % 4];
      x = ptx::exp2(fmaf(x, plan.scale.log2, -rows.ref[r]));
      rows.sum[r] += x;
    }
  };

  // ---- O += P V.
  auto pack_probs = [&](int step, uint32_t(&a)[2][4]) {  // accumulators of 16 keys are an A fragment
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = &s[m][2 * step + i / 2][i % 2 * 2];
        a[m][i] = ptx::pack<E>(x[0], x[1]);
      }
    }
  };
  auto store_probs = [&](auto& pair) {  // for the other warps of the group
#pragma unroll
    for (int step = 0; step < T::kOwnKeys / 16; ++step) {
      uint32_t a[2][4];
      pack_probs(step, a);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = group * 32 + i / 4 * 16 + i % 2 * 8 + lane / 4;
        const int key = part * T::kOwnKeys + step * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(&pair.p[at][key]) = a[i / 4][i % 4];
      }
    }
  };
  auto output = [&](unsigned stage, auto&& also) {
    const uint32_t v_at_stage = v_at + stage * kStageBytes;
    auto load_v = [&](int step, int col, uint32_t(&b)[4]) {
      ptx::ldmatrix_trans(b, v_at_stage + (step * 16 * T::kPitch + col * 16) * 2);
    };
    if constexpr (kSplit == 1) {
      multiply<E, T::kN / 16, T::kOwnCols / 16, kAhead, true>(o, pack_probs, load_v, also);
    } else {
      store_probs(smem.pair);
      pair_sync();
      const uint32_t p_at = ptx::smem_addr(&smem.pair.p[group * 32 + lane % 16][lane / 16 * 8]);
      auto load_p = [&](int step, uint32_t(&a)[2][4]) {
#pragma unroll
        for (int m = 0; m < 2; ++m) ptx::ldmatrix(a[m], p_at + (m * 16 * (T::kN + 8) + step * 16) * 2);
      };
      multiply<E, T::kN / 16, T::kOwnCols / 16, kAhead, false>(o, load_p, load_v, also);
    }
  };
  auto compute_output = [&] {
    const auto [stage, to_stage, phase, free_phase, overwrite] = slot();
    constexpr int kCols = T::kOwnCols / 16, kShare = kCols >= 8 ? 2 : (16 + kCols - 1) / kCols;
    exponentiate(0, kSplit == 1 ? 16 : T::kOwnKeys);
    smem.v_full[stage].wait(phase);
    if (overwrite) smem.v_free[to_stage].wait(free_phase);
    const int rows_left = rows_to_copy();
    output(stage, [&](int step, int col) {  // the other exponentials one step early
      if (kSplit == 1 && step + 1 < T::kN / 16) {
        exponentiate((step + 1) * 16 + min(16, col * kShare), (step + 1) * 16 + min(16, (col + 1) * kShare));
      }
      spread(step * kCols + col, T::kN / 16 * kCols, [&](int i) { copy_v(i, to + to_stage * kStageBytes, rows_left); });
    });
    smem.v_full[to_stage].arrive_when_copied();
    __syncwarp();
    if (lane == 0) smem.v_free[stage].arrive();
  };

  // ---- A tile: begin, steps, finish.
  auto begin = [&](const ForwardWork& work) {
    const KeyBlocks<T> blocks(lengths(), work.row_block);
    const int live = work.row_block * T::kM + lengths().diagonal;  // causal: keys that rows before the tile see
    n = blocks.end - 1;
    first_masked = blocks.first_masked;
    first_dead = (T::kCausal ? live + row + 1 : 0) - part * T::kOwnKeys - lane % 4 * 2;
    rows = SoftmaxRows<2>{};
    no_key_seen = true;
#pragma unroll
    for (int i = 0; i < T::kOwnCols; ++i) o[i / (T::kOwnCols / 2)][i / 4 % (T::kOwnCols / 8)][i % 4] = 0.f;
    __syncwarp();  // all have read it
    if (lane == 0) smem.work[warp] = work;
    ptx::cp_async_wait<0>();  // Q; what was issued after it is in no group
    if (kSplit > 1) {
      pair_sync();
    } else {
      __syncwarp();
    }
    if constexpr (T::c.q_in_registers) {
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) ptx::ldmatrix(q_frags[i][m], q_at + (m * 16 * T::kPitch + i * 16) * 2);
      }
    }
    return T::kCausal ? live + group * 32 + 32 : INT_MAX;  // keys that this warp's last row sees
  };
  auto load_next_queries = [&] {
    const int next = next_tile(index);
    if (next >= 0) load_queries(work_at<T>(plan, next));
  };
  auto step = [&] {
    compute_scores();
    if (__builtin_expect(n >= (T::kCausal ? first_masked : int(unsigned(plan.keys) / T::kN)), 0)) {
      kill_scores<T::kCausal>(s, first_dead - n * T::kN, lengths().keys - n * T::kN - part * T::kOwnKeys - lane % 4 * 2,
                              plan.scale.dead);
    }
    raise_reference();
    if (n == 0) load_next_queries();
    compute_output();
    seek_next();
    ++count;
  };
  // A block whose keys are all dead for this warp's rows: only its share of the copies.
  auto pass_over = [&] {
    const auto [stage, to_stage, phase, free_phase, overwrite] = slot();
    const int rows_left = rows_to_copy();
    if (overwrite) smem.k_free[to_stage].wait(free_phase), smem.v_free[to_stage].wait(free_phase);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      copy_k(i, to + to_stage * kStageBytes, rows_left);
      copy_v(i, to + to_stage * kStageBytes, rows_left);
    }
    smem.k_full[to_stage].arrive_when_copied();
    smem.v_full[to_stage].arrive_when_copied();
    seek_next();
    if (n == 0) load_next_queries();
    if (lane == 0) smem.k_free[stage].arrive(), smem.v_free[stage].arrive();
    ++count;
  };
  auto finish = [&] {
    const int thread = ptx::thread_index(), lane = thread % 32;
    const ForwardWork work = own_work();
    const int first_row = work.row_block * T::kM + thread / 32 / kSplit * 32 + lane / 4;
#pragma unroll
    for (int r = 0; r < 4; ++r) rows.sum[r] = quad_sum(rows.sum[r]);
    combine(rows.sum, [](float a, float b) { return a + b; });
    const int r_of_lse = lane % 4, i = first_row + r_of_lse * 8;  // four lanes share four rows: one for each
    if (p.lse && part == 0 && i < lengths().rows) {
      reinterpret_cast<float*>(p.lse.data)[place_of_lse(work, i)] = rows.lse(r_of_lse, smem.shifts[thread], plan.scale);
    }
    const int64_t to = place_of_row(p.out, work, first_row) + part * T::kOwnCols;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const bool inside = first_row + r * 8 < lengths().rows;
      store_row<E>(p.out, to + r * 8 * p.out.stride[1], o[r / 2], r % 2, rows.inverse(r), inside);
    }
  };

  if constexpr (T::kLengths) {
    const ForwardWork work = work_at<T>(plan, first_index);
    const Sequence sequence = find_sequence(p, work.sequence);
    if (work.row_block * T::kM >= sequence.rows) return;
    if (threadIdx.x == 0) smem.sequence = sequence, smem.lengths = TileLengths::of(p, sequence);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      smem.k_full[i].init(T::kThreads);
      smem.v_full[i].init(T::kThreads);
      smem.k_free[i].init(T::kWarps);
      smem.v_free[i].init(T::kWarps);
    }
  }
  __syncthreads();
  load_queries(work_at<T>(plan, first_index));
  seek_tile();
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
#pragma unroll
    for (int j = 0; j < kPasses; ++j) copy_k(j, to + i * kStageBytes, rows_to_copy());
    smem.k_full[i].arrive_when_copied();
#pragma unroll
    for (int j = 0; j < kPasses; ++j) copy_v(j, to + i * kStageBytes, rows_to_copy());
    smem.v_full[i].arrive_when_copied();
    seek_next();
  }

  while (index >= 0) {
    const int live = begin(work_at<T>(plan, index));
    for (; n >= 0 && n * T::kN >= live; --n) pass_over();
    for (; n >= 0; --n) step();
    finish();
    index = next_tile(index);
  }
  ptx::cp_async_wait_all();  // none may land in shared memory that has a new owner
}

// A tile that no GPU of this machine code is given has none.
template <class T>
__global__ __launch_bounds__(T::kThreads, T::c.blocks) void forward_sm80(const __grid_constant__ Problem p,
                                                                         const __grid_constant__ ForwardSchedule plan) {
#if __CUDA_ARCH__ >= 900
  constexpr SharedMemory kMost = SharedMemory::kb227;
#else
  constexpr SharedMemory kMost = SharedMemory::kb163;
#endif
  if constexpr (T::c.least <= kMost) forward_block<T>(p, plan);
}

}  // namespace tilewise::cuda::v2
