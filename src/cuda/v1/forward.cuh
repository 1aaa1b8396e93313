// FlashAttention-1, forward: Algorithm 1 of Dao et al. 2022 as it is written. A thread block has one head: blocks of K
// and V in the outer loop, blocks of Q in the inner one; O, l and m lie in device memory, and each visit reads,
// rescales and writes them. Masks, which the paper's algorithm does not have, leave out blocks without a live pair.
//
// Pairs of warps take turns on the Q_i. In a pair each warp scores half of K_j's keys and sums half of O_i's columns.
#pragma once

#include "cuda/v1/pieces.cuh"

namespace tilewise::cuda::v1 {

template <class E, int HeadDim>
struct ForwardTile {
  using Element = E;
  static constexpr int kHeadDim = HeadDim;       // D and Dv, padded
  static constexpr int kRows = kForwardRows;     // Br
  static constexpr int kKeys = 16384 / HeadDim;  // Bc: K_j and V_j take 64 KiB, which every GPU has
  static constexpr int kOwnKeys = kKeys / 2, kOwnCols = HeadDim / 2;  // of a warp
  static constexpr int kPitch = HeadDim + 8, kProbPitch = kKeys + 8;  // ldmatrix without bank conflicts
};

// ---- Shared memory: one KeyStorage, then a PairStorage for each pair.

template <class T>
struct KeyStorage {
  typename T::Element k[T::kKeys][T::kPitch], v[T::kKeys][T::kPitch];
  alignas(16) Head head;
};

template <class T>
struct PairStorage {
  typename T::Element q[T::kRows][T::kPitch], p[T::kRows][T::kProbPitch];
  float row_max[2][T::kRows], row_sum[2][T::kRows];  // what each warp of the pair tells the other
};

// ---- The steps, as one thread takes part in them. Its accumulators x[m][n][i] are rows 16 m + lane / 4 + i / 2 * 8
// and columns 8 n + lane % 4 * 2 + i % 2; of its four rows, r is m = r / 2, i / 2 = r % 2.

template <class T>
struct ForwardPair {
  using E = typename T::Element;
  using Scores = float[2][T::kOwnKeys / 8][4];  // [32 rows][own keys]
  using Output = float[2][T::kOwnCols / 8][4];  // [32 rows][own columns]
  static constexpr int kAhead = 2;              // ldmatrix ahead of the mma that need them

  // l_i and m_i of the thread's rows, and what a visit adds to them.
  struct Rows {
    float l[4], m[4], tile_l[4], old_weight[4];  // [rows of the thread]
  };

  const Problem& p;
  const ForwardMemory& memory;
  KeyStorage<T>& keys;
  PairStorage<T>& own;
  Head& head;
  int part, pair, lane;  // warp of its pair, pair of the block
  int first, step, end;  // the pair's Q_i
  uint32_t q_at, k_at, p_at, v_at;

  TILEWISE_DEVICE ForwardPair(const Problem& problem, const ForwardMemory& forward_memory, uint8_t* shared)
      : p(problem),
        memory(forward_memory),
        keys(*reinterpret_cast<KeyStorage<T>*>(shared)),
        own(reinterpret_cast<PairStorage<T>*>(shared + sizeof(KeyStorage<T>))[threadIdx.x / 64]),
        head(keys.head) {
    if (threadIdx.x == 0) {
      const int64_t index = blockIdx.x / memory.splits;
      head.find(p, index / p.heads, index % p.heads, memory.rows, T::kRows);
    }
    __syncthreads();
    part = warp() % 2, pair = warp() / 2, lane = cuda::lane();
    const int pairs = blockDim.x / 64;
    first = blockIdx.x % memory.splits * pairs + pair, step = memory.splits * pairs;
    end = static_cast<int>(ceil_div(head.s.rows, T::kRows));
    q_at = ptx::smem_addr(&own.q[lane % 16][lane / 16 * 8]);
    p_at = ptx::smem_addr(&own.p[lane % 16][lane / 16 * 8]);
    k_at = ptx::smem_addr(&keys.k[part * T::kOwnKeys + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
    v_at = ptx::smem_addr(&keys.v[lane % 16][part * T::kOwnCols + lane / 16 * 8]);
  }

  TILEWISE_DEVICE void sync() const { ptx::named_sync(1 + pair, 64); }
  TILEWISE_DEVICE RowsRange& range(int i) const { return memory.ranges[head.workspace_row / T::kRows + i]; }
  TILEWISE_DEVICE SumAndMax& state(int64_t i, int r) const {
    return memory.state[head.workspace_row + i * T::kRows + lane / 4 + r * 8];
  }
  TILEWISE_DEVICE SumsPart output_of(int64_t i) const {
    return SumsPart(memory.output, head.workspace_row + i * T::kRows, part * T::kOwnCols);
  }

  // O = 0, l = 0, m = -inf; the keys that the rows see. A sink is a key seen before all others whose value is 0.
  TILEWISE_DEVICE void start() const {
    float sink = p.sink ? read_element(p.sink, head.h * p.sink.stride[0]) : -INFINITY;
    if (sink == INFINITY) sink = NAN;  // what exp(sink - m) is
    for (int64_t i = first; i < end; i += step) {
      output_of(i).template clear<T::kOwnCols / 8>();
      if (part != 0) continue;
      const int64_t row = i * T::kRows + lane;
      memory.state[head.workspace_row + row] = {.l = sink == -INFINITY ? 0.0f : 1.0f, .m = sink * kLog2e};
      RowsRange seen;
      if (row < head.s.rows) seen.add(find_live_keys(p, head.s, head.h, row));
      join_lanes(seen);
      if (lane != 0) continue;
      range(static_cast<int>(i)) = seen;
      head.add(seen);
    }
    __syncthreads();
  }

  // The pair's first Q_i from this one on that sees a key of K_j.
  TILEWISE_DEVICE int live(int i, int64_t j) const {
    while (i < end && range(i).dead(j, j + T::kKeys)) i += step;
    return i;
  }

  TILEWISE_DEVICE void copy_keys_and_values(int64_t j) const {
    const E* k = elements<E>(p.k, key_offset(p.k, head.s, j, head.h_kv));
    const E* v = elements<E>(p.v, key_offset(p.v, head.s, j, head.h_kv));
    copy_rows<T>(keys.k, k, p.k.stride[1], head.hi - j, p.head_dim, threadIdx.x, blockDim.x);
    copy_rows<T>(keys.v, v, p.v.stride[1], head.hi - j, p.value_dim, threadIdx.x, blockDim.x);
  }
  TILEWISE_DEVICE void copy_queries(int i) const {
    if (i >= end) return;
    const int64_t row = int64_t{i} * T::kRows;
    const E* q = elements<E>(p.q, row_offset(p.q, head.s, row, head.h));
    copy_rows<T>(own.q, q, p.q.stride[1], head.s.rows - row, p.head_dim, threadIdx.x % 64, 64);
  }

  TILEWISE_DEVICE void load_output(int64_t i, Output& o, Rows& rows) const {
    output_of(i).load(o);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float2 x = __ldcg(reinterpret_cast<const float2*>(&state(i, r)));
      rows.l[r] = x.x, rows.m[r] = x.y;
    }
  }

  // In units of log 2, as m: powers of 2 cost a multiplication less than those of e.
  TILEWISE_DEVICE void scores(Scores& x) const {
    const float scale = scale_log2(p);
#pragma unroll
    for (int i = 0; i < T::kOwnKeys; ++i) x[i / (T::kOwnKeys / 2)][i / 4 % (T::kOwnKeys / 8)][i % 4] = 0;
    multiply<E, T::kHeadDim / 16, T::kOwnKeys / 16, kAhead, false>(
        x,
        [&](int depth, uint32_t(&a)[2][4]) {
          ptx::ldmatrix(a[0], q_at + depth * 32);
          ptx::ldmatrix(a[1], q_at + 16 * T::kPitch * 2 + depth * 32);
        },
        [&](int depth, int col, uint32_t(&b)[4]) { ptx::ldmatrix(b, k_at + (col * 16 * T::kPitch + depth * 16) * 2); },
        [](int, int) {});
#pragma unroll
    for (int i = 0; i < T::kOwnKeys; ++i) x[i / (T::kOwnKeys / 2)][i / 4 % (T::kOwnKeys / 8)][i % 4] *= scale;
  }

  // The keys of K_j that the row of this lane sees.
  TILEWISE_DEVICE BlockKeys live_keys(int64_t i, int64_t j) const {
    if (range(static_cast<int>(i)).whole(j, j + T::kKeys)) return {0, T::kKeys};
    return {find_live_keys(p, head.s, head.h, i * T::kRows + lane), j, T::kKeys};
  }

  // Scores of dead pairs become -inf.
  TILEWISE_DEVICE void mask(BlockKeys of_lane, Scores& x) const {
    if (__all_sync(~0u, of_lane.count == T::kKeys)) return;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const BlockKeys live(__shfl_sync(~0u, of_lane.lo, lane / 4 + r * 8),
                           __shfl_sync(~0u, of_lane.count, lane / 4 + r * 8));
#pragma unroll
      for (int k = 0; k < T::kOwnKeys / 4; ++k) {
        float& score = x[r / 2][k / 2][r % 2 * 2 + k % 2];
        score = live.dead(part * T::kOwnKeys + k / 2 * 8 + lane % 4 * 2 + k % 2) ? -INFINITY : score;
      }
    }
  }

  // m~ = rowmax(S), m_new = max(m, m~), P = e^(m~ - m_new) P~ = exp(S - m_new), l~ = rowsum(P). P goes to shared
  // memory.
  TILEWISE_DEVICE void softmax(Scores& x, Rows& rows) const {
    float tile_m[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      tile_m[r] = -INFINITY;
#pragma unroll
      for (int k = 0; k < T::kOwnKeys / 4; ++k) tile_m[r] = fmaxf(tile_m[r], x[r / 2][k / 2][r % 2 * 2 + k % 2]);
    }
    combine(own.row_max, tile_m, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float m_new = fmaxf(rows.m[r], tile_m[r]), reference = m_new == -INFINITY ? 0 : m_new;
      rows.old_weight[r] = rows.l[r] * ptx::exp2(rows.m[r] - reference);
      rows.m[r] = m_new;
      rows.tile_l[r] = 0;
#pragma unroll
      for (int n = 0; n < T::kOwnKeys / 8; ++n) {
        const float a = ptx::exp2(x[r / 2][n][r % 2 * 2] - reference),
                    b = ptx::exp2(x[r / 2][n][r % 2 * 2 + 1] - reference);
        rows.tile_l[r] += a + b;
        ptx::store_shared(ptx::smem_addr(&own.p[lane / 4 + r * 8][part * T::kOwnKeys + n * 8 + lane % 4 * 2]),
                          ptx::pack<E>(a, b));
      }
    }
    combine(own.row_sum, rows.tile_l, [](float a, float b) { return a + b; });
  }

  // Over the four lanes and the two warps that share a row. All that the pair wrote before is then seen by both.
  template <class Op>
  TILEWISE_DEVICE void combine(float (&shared)[2][T::kRows], float (&x)[4], Op op) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      x[r] = op(x[r], __shfl_xor_sync(~0u, x[r], 1));
      x[r] = op(x[r], __shfl_xor_sync(~0u, x[r], 2));
      if (lane % 4 == 0) shared[part][lane / 4 + r * 8] = x[r];
    }
    sync();
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = op(x[r], shared[part ^ 1][lane / 4 + r * 8]);
  }

  // O_i = l_i e^(m_i - m_new) O_i + P V_j, and l_i = l_new.
  TILEWISE_DEVICE void add_values(Output& o, Rows& rows) const {
#pragma unroll
    for (int i = 0; i < T::kOwnCols; ++i)
      o[i / (T::kOwnCols / 2)][i / 4 % (T::kOwnCols / 8)][i % 4] *=
          rows.old_weight[i / (T::kOwnCols / 2) * 2 + i / 2 % 2];
    multiply<E, T::kKeys / 16, T::kOwnCols / 16, kAhead, false>(
        o,
        [&](int depth, uint32_t(&a)[2][4]) {
          ptx::ldmatrix(a[0], p_at + depth * 32);
          ptx::ldmatrix(a[1], p_at + 16 * T::kProbPitch * 2 + depth * 32);
        },
        [&](int depth, int col, uint32_t(&b)[4]) {
          ptx::ldmatrix_trans(b, v_at + (depth * 16 * T::kPitch + col * 16) * 2);
        },
        [](int, int) {});
#pragma unroll
    for (int r = 0; r < 4; ++r) rows.l[r] = rows.old_weight[r] + rows.tile_l[r];
  }

  // O_i = diag(l_i)^-1 O_i. Rows that saw no key of the block stay as they are: 0 * V may be NaN.
  TILEWISE_DEVICE void store_output(int i, const Output& o, const Rows& rows) const {
    i = ptx::pin(i);  // the addresses anew: from load_output on they would not fit into registers
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (rows.tile_l[r] == 0) continue;
      output_of(i).store(r, o, __fdividef(1, rows.l[r]));
      if (part == 0 && lane % 4 == 0) {
        __stcg(reinterpret_cast<float2*>(&state(i, r)), float2{rows.l[r], rows.m[r]});
      }
    }
  }

  // O in its type, and lse = m + log l.
  TILEWISE_DEVICE void finish() const {
    for (int64_t i = first; i < end; i += step) {
      Output o;
      Rows sums;
      load_output(i, o, sums);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int64_t row = i * T::kRows + lane / 4 + r * 8;
        if (row >= head.s.rows) continue;
        const int64_t to = row_offset(p.out, head.s, row, head.h);
#pragma unroll
        for (int n = 0; n < T::kOwnCols / 8; ++n) {
          const int column = part * T::kOwnCols + n * 8 + lane % 4 * 2;
          if (column < p.value_dim) store_pair(p.out, to + column, o[r / 2][n][r % 2 * 2], o[r / 2][n][r % 2 * 2 + 1]);
        }
        if (p.lse && part == 0 && lane % 4 == 0) {
          const float lse = sums.l[r] == 0 ? -INFINITY : sums.m[r] * kLn2 + logf(sums.l[r]);
          write_element(p.lse, lse_offset(p.lse, head.s, row, head.h), lse);
        }
      }
    }
  }
};

// ---- The loop.

template <class T>
__global__ __launch_bounds__(64 * kMostPairs, 1) void forward(const __grid_constant__ Problem p,
                                                              const __grid_constant__ ForwardMemory memory) {
  extern __shared__ __align__(128) uint8_t shared[];
  const ForwardPair<T> pair(p, memory, shared);
  pair.start();  // O = 0, l = 0, m = -inf
  for (int64_t j = pair.head.lo; j < pair.head.hi; j += T::kKeys) {
    __syncthreads();
    pair.copy_keys_and_values(j);  // K_j, V_j
    int i = pair.live(pair.first, j);
    pair.copy_queries(i);
    ptx::cp_async_wait_all();
    __syncthreads();
    while (i < pair.end) {
      typename ForwardPair<T>::Scores s;
      typename ForwardPair<T>::Output o;
      typename ForwardPair<T>::Rows rows;
      pair.load_output(i, o, rows);  // O_i, l_i, m_i: early, they come from afar
      const int next = pair.live(i + pair.step, j);
      const BlockKeys live = pair.live_keys(i, j);
      ptx::cp_async_wait_all();
      pair.sync();     // Q_i
      pair.scores(s);  // S_ij = Q_i K_j^T
      pair.mask(live, s);
      pair.softmax(s, rows);  // m~, P~, l~, m_new
      pair.copy_queries(next);
      pair.add_values(o, rows);       // l_i e^(m_i - m_new) O_i + e^(m~ - m_new) P~ V_j, l_new
      pair.store_output(i, o, rows);  // O_i, l_i, m_i
      i = next;
    }
  }
  __syncthreads();
  pair.finish();
}

template <class E, int HeadDim>
constexpr ForwardUnit forward_unit() {
  using T = ForwardTile<E, HeadDim>;
  return {
      .kernel = forward<T>, .keys = T::kKeys, .key_bytes = sizeof(KeyStorage<T>), .pair_bytes = sizeof(PairStorage<T>)};
}

}  // namespace tilewise::cuda::v1
