// FlashAttention-1, backward: Algorithm 4 of Dao et al. 2022. A thread block has one key head: blocks of K and V in the
// outer loop, whose dK_j and dV_j stay in registers; blocks of Q in the inner one; each visit reads Q_i, O_i, dO_i and
// LSE_i, and reads, adds to and writes dQ_i in device memory. LSE = m + log l stands for the pair (m, l):
// P = diag(l)^-1 exp(S - m) = exp(S - LSE). The query heads of a group follow each other in the inner loop, so that
// dK_j and dV_j are their sums, always in one order.
#pragma once

#include "cuda/v1/pieces.cuh"

namespace tilewise::cuda::v1 {

// How a thread block is cut: only speed depends on it.
struct BackwardShape {
  int warps;
  int parts;  // warps that share 32 keys: for dK and dV each takes a part of the columns. The more, the fewer registers
  int rows;   // Br, a multiple of 32
};
constexpr BackwardShape backward_shape(int head_dim, Room room) {
  const int parts = head_dim > 128 ? 4 : 2;
  if (head_dim > 64 && room == Room::narrow) return {.warps = 4, .parts = parts, .rows = 32};
  return {.warps = 8, .parts = parts, .rows = 64};
}

template <class E, int HeadDim, Room room>
struct BackwardTile {
  using Element = E;
  static constexpr BackwardShape kShape = backward_shape(HeadDim, room);
  static constexpr int kHeadDim = HeadDim, kWarps = kShape.warps, kThreads = 32 * kWarps, kParts = kShape.parts;
  static constexpr int kRows = kShape.rows, kKeys = 32 * kWarps / kParts;  // Br, Bc
  static constexpr int kOwnCols = HeadDim / kParts;
  static constexpr int kScoreParts = kRows / 16 < kParts ? kRows / 16 : kParts;  // of the queries, for S^T and dP^T
  static constexpr int kOwnRows = kRows / kScoreParts;
  static constexpr int kDqRowWarps = kRows / 32, kDqCols = HeadDim * kDqRowWarps / kWarps;  // dQ: 32 rows x kDqCols
  static constexpr int kDqPiece = kDqCols < 64 && HeadDim <= 128 ? kDqCols : 16;  // at a time, beside dK_j and dV_j
  static constexpr int kAhead = kDqCols == kDqPiece ? 2 : 1;          // ldmatrix ahead of the mma that need them
  static constexpr int kPitch = HeadDim + 8, kProbPitch = kRows + 8;  // no bank conflicts
};

// One block of queries and what a visit finds out about its rows.
template <class T>
struct QueryStorage {
  typename T::Element q[T::kRows][T::kPitch], dout[T::kRows][T::kPitch];
};

template <class T>
struct BackwardStorage {
  typename T::Element k[T::kKeys][T::kPitch], v[T::kKeys][T::kPitch];
  typename T::Element p[T::kKeys][T::kProbPitch], ds[T::kKeys][T::kProbPitch];  // transposed: a row is a key
  float lse[T::kRows], delta[T::kRows];                                         // lse: +inf for rows whose P is 0
  int first_live[T::kRows], live_count[T::kRows];
  alignas(16) Head head;
  alignas(16) QueryStorage<T> stage[1];  // two where there is room
};

// ---- The steps, as one thread takes part in them. Accumulators as in the forward; rows of S^T are keys.

template <class T>
struct BackwardBlock {
  using E = typename T::Element;
  using Scores = float[2][T::kOwnRows / 8][4];     // [32 keys][own rows of Q_i] of S^T, dP^T
  using KeySums = float[2][T::kOwnCols / 8][4];    // [32 keys][own columns] of dK_j, dV_j
  using QuerySums = float[2][T::kDqPiece / 8][4];  // [32 rows][columns of a piece] of dQ_i
  static constexpr int kDepth = T::kHeadDim / 16, kAhead = T::kAhead;
  static constexpr int kLanes = T::kThreads / T::kRows;  // that share a row in sums over it
  using OutPart = float4[T::kHeadDim / 8 / kLanes];      // of a row of O_i, 8 elements each

  // Query head g of the group and block i of its rows.
  struct Queries {
    int g, i;
  };

  const Problem& p;
  const BackwardMemory& memory;
  BackwardStorage<T>& shared;
  Head& head;
  int blocks;  // Q_i of a head
  int lane, group, part;
  bool scores;                     // this warp has a part of S^T and dP^T
  int a_row, a_col, b_row, b_col;  // where ldmatrix of A, and of B by rows, reads
  int dq_row, dq_col;

  TILEWISE_DEVICE BackwardBlock(const Problem& problem, const BackwardMemory& backward_memory, uint8_t* raw)
      : p(problem), memory(backward_memory), shared(*reinterpret_cast<BackwardStorage<T>*>(raw)), head(shared.head) {
    if (threadIdx.x == 0) {
      const int64_t h_kv = blockIdx.x % p.heads_kv;
      head.find(p, blockIdx.x / p.heads_kv, h_kv * p.group(), memory.rows, T::kRows);
    }
    __syncthreads();
    blocks = static_cast<int>(ceil_div(head.s.rows, T::kRows));
    const int warp = cuda::warp();
    lane = cuda::lane(), group = warp / T::kParts, part = warp % T::kParts, scores = part < T::kScoreParts;
    a_row = lane % 16, a_col = lane / 16 * 8, b_row = lane % 8 + lane / 16 * 8, b_col = lane / 8 % 2 * 8;
    dq_row = warp % T::kDqRowWarps * 32, dq_col = warp / T::kDqRowWarps * T::kDqCols;
  }

  TILEWISE_DEVICE int64_t workspace_row(Queries x) const {
    return head.workspace_row + x.g * memory.rows + int64_t{x.i} * T::kRows;
  }
  TILEWISE_DEVICE RowsRange& range(Queries x) const { return memory.ranges[workspace_row(x) / T::kRows]; }
  TILEWISE_DEVICE SumsPart dq_of(Queries x, int piece) const {
    return SumsPart(memory.dq, workspace_row(x) + dq_row, dq_col + piece);
  }

  TILEWISE_DEVICE bool at_end(Queries x) const { return x.g >= head.group; }
  TILEWISE_DEVICE Queries after(Queries x) const {
    return x.i + 1 < blocks ? Queries{x.g, x.i + 1} : Queries{x.g + 1, 0};
  }
  // The first Q_i from this one on that sees a key of K_j.
  TILEWISE_DEVICE Queries live(Queries x, int64_t j) const {
    while (!at_end(x) && range(x).dead(j, j + T::kKeys)) x = after(x);
    return x;
  }
  TILEWISE_DEVICE Queries first() const { return blocks > 0 ? Queries{0, 0} : Queries{head.group, 0}; }

  // dQ = 0; the keys that the rows see.
  TILEWISE_DEVICE void start() const {
    for (Queries x = first(); !at_end(x); x = after(x)) {
      if (p.dq) dq_of(x, 0).template clear<T::kDqCols / 8>();
      if (x.i % T::kWarps != warp()) continue;
      RowsRange seen;
      for (int64_t row = int64_t{x.i} * T::kRows + lane; row < lesser(head.s.rows, (x.i + int64_t{1}) * T::kRows);
           row += 32)
        seen.add(find_live_keys(p, head.s, head.h + x.g, row));
      join_lanes(seen);
      if (lane != 0) continue;
      range(x) = seen;
      head.add(seen);
    }
    __syncthreads();
  }

  TILEWISE_DEVICE void copy_keys_and_values(int64_t j) const {
    const int64_t keys_left = head.hi - j;
    copy_rows<T>(shared.k, elements<E>(p.k, key_offset(p.k, head.s, j, head.h_kv)), p.k.stride[1], keys_left,
                 p.head_dim, threadIdx.x, T::kThreads);
    copy_rows<T>(shared.v, elements<E>(p.v, key_offset(p.v, head.s, j, head.h_kv)), p.v.stride[1], keys_left,
                 p.value_dim, threadIdx.x, T::kThreads);
  }
  TILEWISE_DEVICE void copy_queries(Queries x, QueryStorage<T>& to) const {
    if (at_end(x)) return;
    const int64_t row = int64_t{x.i} * T::kRows, h = head.h + x.g;
    copy_rows<T>(to.q, elements<E>(p.q, row_offset(p.q, head.s, row, h)), p.q.stride[1], head.s.rows - row, p.head_dim,
                 threadIdx.x, T::kThreads);
    copy_rows<T>(to.dout, elements<E>(p.dout, row_offset(p.dout, head.s, row, h)), p.dout.stride[1], head.s.rows - row,
                 p.value_dim, threadIdx.x, T::kThreads);
  }

  // Which keys of K_j the rows see, to shared memory; false if they all see all. Rows that see no key at all count as
  // zeros, whatever they hold.
  TILEWISE_DEVICE bool find_live(Queries x, int64_t j, QueryStorage<T>& queries) const {
    if (range(x).whole(j, j + T::kKeys)) return false;
    if (threadIdx.x < T::kRows) {
      const KeyRange live = find_live_keys(p, head.s, head.h + x.g, int64_t{x.i} * T::kRows + threadIdx.x);
      const BlockKeys in_block(live, j, T::kKeys);
      shared.first_live[threadIdx.x] = in_block.lo;
      shared.live_count[threadIdx.x] = live.empty() ? -1 : in_block.count;
    }
    __syncthreads();
    constexpr int kChunks = T::kHeadDim / 8;
    for (int c = threadIdx.x; c < T::kRows * kChunks; c += T::kThreads) {
      if (shared.live_count[c / kChunks] >= 0) continue;
      *reinterpret_cast<uint4*>(&queries.q[c / kChunks][c % kChunks * 8]) = {};
      *reinterpret_cast<uint4*>(&queries.dout[c / kChunks][c % kChunks * 8]) = {};
    }
    __syncthreads();
    return true;
  }

  // x = A B^T of 32 keys and the thread's queries, out of shared memory.
  TILEWISE_DEVICE void multiply_rows(const E (&keys)[T::kKeys][T::kPitch], const E (&queries)[T::kRows][T::kPitch],
                                     Scores& x) const {
    const uint32_t keys_at = ptx::smem_addr(&keys[group * 32 + a_row][a_col]);
    const uint32_t queries_at = ptx::smem_addr(&queries[part * T::kOwnRows + b_row][b_col]);
#pragma unroll
    for (int i = 0; i < T::kOwnRows; ++i) x[i / (T::kOwnRows / 2)][i / 4 % (T::kOwnRows / 8)][i % 4] = 0;
    multiply<E, kDepth, T::kOwnRows / 16, kAhead, false>(
        x,
        [&](int depth, uint32_t(&a)[2][4]) {
          ptx::ldmatrix(a[0], keys_at + depth * 32);
          ptx::ldmatrix(a[1], keys_at + 16 * T::kPitch * 2 + depth * 32);
        },
        [&](int depth, int col, uint32_t(&b)[4]) {
          ptx::ldmatrix(b, queries_at + (col * 16 * T::kPitch + depth * 16) * 2);
        },
        [](int, int) {});
  }

  TILEWISE_DEVICE void load_out(Queries x, OutPart& part_of_row) const {
    const int64_t row = int64_t{x.i} * T::kRows + threadIdx.x / kLanes;
    const E* out = elements<E>(p.out, row_offset(p.out, head.s, row, head.h + x.g)) + threadIdx.x % kLanes * 8;
#pragma unroll
    for (int c = 0; c < T::kHeadDim / 8 / kLanes; ++c) {
      const bool inside = row < head.s.rows && (c * kLanes + static_cast<int>(threadIdx.x) % kLanes) * 8 < p.value_dim;
      part_of_row[c] = inside ? ptx::load_past_l1(reinterpret_cast<const float4*>(out + c * kLanes * 8)) : float4{};
    }
  }
  // D_i = rowsum(dO_i O_i), less the gradient of lse; LSE_i. To shared memory.
  TILEWISE_DEVICE void row_sums(Queries x, const QueryStorage<T>& queries, const OutPart& out, bool masked) const {
    const int64_t h = head.h + x.g;
    const int r = threadIdx.x / kLanes;
    const int64_t row = int64_t{x.i} * T::kRows + r;
    const bool counts = row < head.s.rows && !(masked && shared.live_count[r] < 0);
    float sum = 0;
#pragma unroll
    for (int c = 0; c < T::kHeadDim / 8 / kLanes; ++c) {
      sum += dot(out[c], &queries.dout[r][(c * kLanes + threadIdx.x % kLanes) * 8]);
    }
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (threadIdx.x % kLanes != 0) return;
    const float lse = counts ? read_element(p.lse, lse_offset(p.lse, head.s, row, h)) : -INFINITY;
    shared.lse[r] = lse == -INFINITY ? INFINITY : lse * kLog2e;
    if (counts && p.dlse) sum -= read_element(p.dlse, lse_offset(p.dlse, head.s, row, h));
    shared.delta[r] = counts ? sum : 0;
  }
  static TILEWISE_DEVICE float dot(const float4& a, const E* b) {
    const E* x = reinterpret_cast<const E*>(&a);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(value_of(x[i]), value_of(b[i]), sum);
    return sum;
  }

  // P^T = exp(S^T - LSE), dS^T = P^T (dP^T - D). To shared memory.
  TILEWISE_DEVICE void gradients(const Scores& score, const Scores& dp, bool masked) const {
    const float scale = scale_log2(p);
#pragma unroll
    for (int n = 0; n < T::kOwnRows / 8; ++n) {
      const int row = part * T::kOwnRows + n * 8 + lane % 4 * 2;
      const float2 lse = *reinterpret_cast<const float2*>(&shared.lse[row]);
      const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[row]);
      BlockKeys live_a(0, T::kKeys), live_b(0, T::kKeys);
      if (masked) {
        live_a = {shared.first_live[row], shared.live_count[row]};
        live_b = {shared.first_live[row + 1], shared.live_count[row + 1]};
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int key = group * 32 + lane / 4 + r * 8;
        float a = ptx::exp2(fmaf(score[r / 2][n][r % 2 * 2], scale, -lse.x));
        float b = ptx::exp2(fmaf(score[r / 2][n][r % 2 * 2 + 1], scale, -lse.y));
        if (masked) a = live_a.dead(key) ? 0 : a, b = live_b.dead(key) ? 0 : b;
        ptx::store_shared(ptx::smem_addr(&shared.p[key][row]), ptx::pack<E>(a, b));
        ptx::store_shared(
            ptx::smem_addr(&shared.ds[key][row]),
            ptx::pack<E>(a * (dp[r / 2][n][r % 2 * 2] - delta.x), b * (dp[r / 2][n][r % 2 * 2 + 1] - delta.y)));
      }
    }
  }

  // dQ_i = dQ_i + dS_ij K_j, but for the scale.
  TILEWISE_DEVICE void add_dq(Queries x) const {
    if (!p.dq) return;
    const uint32_t ds_at = ptx::smem_addr(&shared.ds[b_row][dq_row + b_col]);
    const uint32_t k_at = ptx::smem_addr(&shared.k[a_row][dq_col + a_col]);
#pragma unroll
    for (int piece = 0; piece < T::kDqCols; piece += T::kDqPiece) {
      QuerySums dq;
      const SumsPart sums = dq_of(x, piece);
      sums.load(dq);
      multiply<E, T::kKeys / 16, T::kDqPiece / 16, kAhead, false>(
          dq,
          [&](int depth, uint32_t(&a)[2][4]) {
            ptx::ldmatrix_trans(a[0], ds_at + depth * 16 * T::kProbPitch * 2);
            ptx::ldmatrix_trans(a[1], ds_at + (depth * 16 * T::kProbPitch + 16) * 2);
          },
          [&](int depth, int col, uint32_t(&b)[4]) {
            ptx::ldmatrix_trans(b, k_at + (depth * 16 * T::kPitch + col * 16 + piece) * 2);
          },
          [](int, int) {});
#pragma unroll
      for (int r = 0; r < 4; ++r) sums.store(r, dq, 1);
    }
  }

  // sums += A^T B, out of shared memory: dV_j += P_ij^T dO_i, dK_j += dS_ij^T Q_i.
  TILEWISE_DEVICE void add_to_keys(const E (&probs)[T::kKeys][T::kProbPitch], const E (&queries)[T::kRows][T::kPitch],
                                   KeySums& sums) const {
    const uint32_t probs_at = ptx::smem_addr(&probs[group * 32 + a_row][a_col]);
    const uint32_t queries_at = ptx::smem_addr(&queries[a_row][part * T::kOwnCols + a_col]);
    multiply<E, T::kRows / 16, T::kOwnCols / 16, kAhead, false>(
        sums,
        [&](int depth, uint32_t(&a)[2][4]) {
          ptx::ldmatrix(a[0], probs_at + depth * 32);
          ptx::ldmatrix(a[1], probs_at + 16 * T::kProbPitch * 2 + depth * 32);
        },
        [&](int depth, int col, uint32_t(&b)[4]) {
          ptx::ldmatrix_trans(b, queries_at + (depth * 16 * T::kPitch + col * 16) * 2);
        },
        [](int, int) {});
  }

  TILEWISE_DEVICE void store_keys(const Tensor& to, int64_t columns, const KeySums& sums, float factor,
                                  int64_t j) const {
    if (!to) return;
    const int64_t keys_left = head.hi - j;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = group * 32 + lane / 4 + r * 8;
      if (key >= keys_left) continue;
      const int64_t at = key_offset(to, head.s, j + key, head.h_kv);
#pragma unroll
      for (int n = 0; n < T::kOwnCols / 8; ++n) {
        const int column = part * T::kOwnCols + n * 8 + lane % 4 * 2;
        if (column >= columns) continue;
        store_gradient_pair(p, to, at + column, sums[r / 2][n][r % 2 * 2] * factor,
                            sums[r / 2][n][r % 2 * 2 + 1] * factor);
      }
    }
  }

  // Keys that no row sees.
  TILEWISE_DEVICE void clear_keys(const Tensor& t, int64_t columns, KeyRange keys) const {
    if (!t || p.accumulate) return;
    for (int64_t j = keys.lo + warp(); j < keys.hi; j += T::kWarps) {
      for (int64_t c = lane; c < columns; c += 32) write_element(t, key_offset(t, head.s, j, head.h_kv) + c, 0);
    }
  }

  // dQ in its type, and the keys that no row sees.
  TILEWISE_DEVICE void finish() const {
    const KeyRange hull{head.lo, head.hi};
    const int64_t keys = head.s.keys;
    const KeyRange before{0, hull.empty() ? keys : hull.lo}, behind{hull.empty() ? keys : hull.hi, keys};
    clear_keys(p.dk, p.head_dim, before), clear_keys(p.dk, p.head_dim, behind);
    clear_keys(p.dv, p.value_dim, before), clear_keys(p.dv, p.value_dim, behind);
    for (Queries x = first(); p.dq && !at_end(x); x = after(x)) {
      for (int piece = 0; piece < T::kDqCols; piece += T::kDqPiece) store_dq(x, piece);
    }
  }
  // A row that sees no key has none, whatever 0 * K was.
  TILEWISE_DEVICE void store_dq(Queries x, int piece) const {
    QuerySums dq;
    dq_of(x, piece).load(dq);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = int64_t{x.i} * T::kRows + dq_row + lane / 4 + r * 8;
      if (row >= head.s.rows) continue;
      const float factor = p.softmax_scale;
      const bool dead = find_live_keys(p, head.s, head.h + x.g, row).empty();
      const int64_t at = row_offset(p.dq, head.s, row, head.h + x.g);
#pragma unroll
      for (int n = 0; n < T::kDqPiece / 8; ++n) {
        const int column = dq_col + piece + n * 8 + lane % 4 * 2;
        if (column >= p.head_dim) continue;
        const float a = dq[r / 2][n][r % 2 * 2] * factor, b = dq[r / 2][n][r % 2 * 2 + 1] * factor;
        store_gradient_pair(p, p.dq, at + column, dead ? 0 : a, dead ? 0 : b);
      }
    }
  }
};

// ---- The loop.

template <class T>
__global__ __launch_bounds__(T::kThreads, 1) void backward(const __grid_constant__ Problem p,
                                                           const __grid_constant__ BackwardMemory memory) {
  extern __shared__ __align__(128) uint8_t raw[];
  const BackwardBlock<T> block(p, memory, raw);
  auto& shared = block.shared;
  const bool copies_ahead = memory.stages == 2;
  block.start();  // dQ = 0
  for (int64_t j = block.head.lo; j < block.head.hi; j += T::kKeys) {
    __syncthreads();
    typename BackwardBlock<T>::KeySums dk = {}, dv = {};
    block.copy_keys_and_values(j);  // K_j, V_j
    auto x = block.live(block.first(), j);
    block.copy_queries(x, shared.stage[0]);  // Q_i, dO_i
    for (int stage = 0; !block.at_end(x);) {
      auto& queries = shared.stage[stage];
      typename BackwardBlock<T>::OutPart out;
      block.load_out(x, out);  // O_i: early, it comes from afar
      const auto next = block.live(block.after(x), j);
      ptx::cp_async_wait_all();
      __syncthreads();
      if (copies_ahead) block.copy_queries(next, shared.stage[stage ^ 1]);
      const bool masked = block.find_live(x, j, queries);
      typename BackwardBlock<T>::Scores s, dp;
      if (block.scores) block.multiply_rows(shared.k, queries.q, s);      // S_ij = Q_i K_j^T
      block.row_sums(x, queries, out, masked);                            // D_i = rowsum(dO_i O_i), LSE_i
      if (block.scores) block.multiply_rows(shared.v, queries.dout, dp);  // dP_ij = dO_i V_j^T
      __syncthreads();
      if (block.scores) block.gradients(s, dp, masked);  // P_ij, dS_ij
      __syncthreads();
      block.add_dq(x);                                // dQ_i += dS_ij K_j
      block.add_to_keys(shared.p, queries.dout, dv);  // dV_j += P_ij^T dO_i
      block.add_to_keys(shared.ds, queries.q, dk);    // dK_j += dS_ij^T Q_i
      if (copies_ahead) {
        stage ^= 1;
      } else {
        __syncthreads();
        block.copy_queries(next, queries);
      }
      x = next;
    }
    block.store_keys(p.dk, p.head_dim, dk, p.softmax_scale, j);
    block.store_keys(p.dv, p.value_dim, dv, 1, j);
  }
  ptx::cp_async_wait_all();
  block.finish();
}

template <class E, int HeadDim, Room room>
constexpr BackwardUnit backward_unit() {
  using T = BackwardTile<E, HeadDim, room>;
  return {.kernel = backward<T>,
          .rows = T::kRows,
          .keys = T::kKeys,
          .threads = T::kThreads,
          .shared_bytes = sizeof(BackwardStorage<T>),
          .stage_bytes = sizeof(QueryStorage<T>)};
}

}  // namespace tilewise::cuda::v1
