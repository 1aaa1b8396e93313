// The backward kernel in fp32, by 3xTF32, with every option of a call: the steps of backward.cuh, one block of queries
// at a time. Inputs may have 16 bits where O and dO are fp32: they become fp32 on their way to shared memory.
#pragma once

#include "cuda/common/copy_rows.cuh"
#include "cuda/common/tile_f32.cuh"
#include "cuda/v2/backward_pairs.cuh"
#include "cuda/v2/backward_rows.cuh"
#include "cuda/v2/backward_turns.cuh"
#include "cuda/v2/backward_walk.cuh"

namespace tilewise::cuda::v2 {

// ---- Tile.

template <int D>
struct BackwardF32Shape {
  static constexpr BackwardTile c = backward_f32_tile(D);
  static constexpr int kHeadDim = D, kWarps = c.warps, kThreads = c.threads(), kKeys = c.keys(), kQueries = c.queries;

  // Warps share 16 keys, and each two of them a part of the queries: one makes S^T, the other dP^T, and each finishes
  // half of their pairs. Each sums a part of the columns of dK and dV; it has 16 rows of dQ, and a part of its columns.
  static constexpr int kSharers = 16 * kWarps / kKeys;
  static constexpr int kOwnQueries = 2 * kQueries / kSharers, kOwnCols = D / kSharers;
  static constexpr int kFinishQueries = kOwnQueries > 8 ? kOwnQueries / 2 : 8;
  static constexpr int kDqRowParts = kQueries / 16, kDqCols = D * kDqRowParts / kWarps;
  static_assert(kOwnQueries % 8 == 0 && kOwnCols % 8 == 0 && kDqCols % 8 == 0);

  // So far apart that fragments come without conflicts, by rows and by columns.
  static constexpr int kPitch = D + 4, kProbPitch = kQueries + 8;
};

// ---- Shared memory.

template <class T>
struct BackwardF32Storage {
  float k[T::kKeys][T::kPitch], v[T::kKeys][T::kPitch];
  float q[T::kQueries][T::kPitch], dout[T::kQueries][T::kPitch];
  float p[T::kKeys][T::kProbPitch], ds[T::kKeys][T::kProbPitch];  // transposed: a row is a key
  float lse[T::kQueries], delta[T::kQueries];
  KeyBlock<T> block;
  Sequence sequence;
  UsedKeys used;
  int ticket;  // in order: which block of keys this is
};

// One block of keys of one kv head.
template <class T>
class BackwardF32 {
  using Storage = BackwardF32Storage<T>;
  // Key lane / 4 + i / 2 * 8, query or column 8 n + lane % 4 * 2 + i % 2.
  using Products = float[1][T::kOwnQueries / 8][4];     // [16 keys][own queries]
  using Finished = float[1][T::kFinishQueries / 8][4];  // [16 keys][queries that it finishes]
  using Gradient = float[T::kOwnCols / 8][4];           // [16 keys][own columns]

 public:
  TILEWISE_DEVICE BackwardF32(const Problem& problem, const BackwardWork& workspace, Storage& storage)
      : p(problem), work(workspace), smem(storage) {}

  TILEWISE_DEVICE void walk() {
    if (threadIdx.x == 0) smem.sequence = find_sequence(p, block.batch);
    const UsedKeys used = blocks.used(block, smem.used);
    copy_keys(used);
    for (QueryBlock here = blocks.first(block); here.head < block.end_head; here = blocks.after(block, here)) {
      const bool whole = blocks.is_whole(block, here);
      copy_queries(here, whole);
      ptx::cp_async_wait_all();
      __syncthreads();  // all of Q, dO are there
      make_ds(here, whole);
      __syncthreads();  // all of P, dS are there
      multiply_f32<T::kQueries / 8, 1>(
          dv, [&](int step, float(&a)[4]) { load_a_pairs_f32(a, smem.p, first_key(), step * 8); },
          [&](int step, int n, float(&b)[2]) { load_columns_f32(b, smem.dout, step * 8, own_col() + n * 8); });
      multiply_f32<T::kQueries / 8, 1>(
          dk, [&](int step, float(&a)[4]) { load_a_pairs_f32(a, smem.ds, first_key(), step * 8); },
          [&](int step, int n, float(&b)[2]) { load_columns_f32(b, smem.q, step * 8, own_col() + n * 8); });
      if (work.wants_dq) add_dq(here);
      __syncthreads();  // all are done with the block
    }
    ptx::cp_async_wait_all();  // of keys that no query uses
  }

  TILEWISE_DEVICE void store() {
    store(dk, p.softmax_scale, p.dk);
    store(dv, 1, p.dv);
  }

 private:
  static TILEWISE_DEVICE int first_key() { return warp() / T::kSharers * 16; }
  static TILEWISE_DEVICE int first_query() { return warp() % T::kSharers / 2 * T::kOwnQueries; }
  static TILEWISE_DEVICE bool makes_dp() { return warp() % 2; }
  static TILEWISE_DEVICE int own_key() { return first_key() + lane() / 4; }
  static TILEWISE_DEVICE int own_query() { return first_query() + lane() % 4 * 2; }
  static TILEWISE_DEVICE int own_col() { return warp() % T::kSharers * T::kOwnCols; }
  static TILEWISE_DEVICE int dq_row() { return warp() % T::kDqRowParts * 16; }
  static TILEWISE_DEVICE int dq_col() { return warp() / T::kDqRowParts * T::kDqCols; }

  // ---- Copies. Keys and rows that nobody uses become zeros.

  TILEWISE_DEVICE void copy_keys(const UsedKeys& used) {
    const auto is_used = [&](int key) { return key >= used.begin && key < used.end; };
    copy_rows<T::kThreads, T::kHeadDim>(smem.k, p.k, p.k.offset(block.k_slot, block.first_token, block.kv_head), 0,
                                        is_used);
    copy_rows<T::kThreads, T::kHeadDim>(smem.v, p.v, p.v.offset(block.k_slot, block.first_token, block.kv_head), 0,
                                        is_used);
  }
  TILEWISE_DEVICE void copy_queries(const QueryBlock& b, bool whole) {
    const int row = b.m * T::kQueries, token = block.first_row + row;
    const auto is_used = [&](int query) {
      if (row + query >= block.rows) return false;
      const int2 live = whole ? int2{0, 1} : live_keys_of(p, work, block, b, query);
      return live.x < live.y;
    };
    copy_rows<T::kThreads, T::kHeadDim>(smem.q, p.q, p.q.offset(block.q_slot, token, b.head), 0, is_used);
    copy_rows<T::kThreads, T::kHeadDim>(smem.dout, p.dout, p.dout.offset(block.q_slot, token, b.head), 0, is_used);
    if (threadIdx.x < T::kQueries) {
      smem.lse[threadIdx.x] = work.lse[work_row_of(work, block, b) + threadIdx.x];
      smem.delta[threadIdx.x] = work.delta[work_row_of(work, block, b) + threadIdx.x];
    }
  }

  // ---- The steps of a block of queries.

  // S^T = K Q^T and dP^T = V dO^T, then P and dS of them; all by way of shared memory.
  TILEWISE_DEVICE void make_ds(const QueryBlock& b, bool whole) {
    make_products();
    ptx::named_sync(1 + warp() / T::kSharers, 32 * T::kSharers);
    const int key = own_key(), query = own_query() + (makes_dp() ? T::kFinishQueries : 0);
    if (query >= first_query() + T::kOwnQueries) return;
    Finished s, dp;
    each_two(smem.p, s, query, [](float2& at, float& x, float& y) { x = at.x, y = at.y; });
    each_two(smem.ds, dp, query, [](float2& at, float& x, float& y) { x = at.x, y = at.y; });
    PairTerms<1, T::kFinishQueries / 8> terms(p, smem.sequence, b.head, block.first_key + key,
                                              b.m * T::kQueries + query);
    terms.finish(s, dp, &smem.delta[query]);
    if (!whole) mask(s, b, key, query);
    terms.exponentiate(s, dp, &smem.lse[query]);
    store_pairs(smem.p, s, query);
    store_pairs(smem.ds, dp, query);
  }

  // Into the places of P and dS.
  TILEWISE_DEVICE void make_products() {
    const bool of_dp = makes_dp();
    const auto& queries = of_dp ? smem.dout : smem.q;
    const auto& keys = reinterpret_cast<const float(&)[16][T::kPitch]>((of_dp ? smem.v : smem.k)[first_key()]);
    Products x = {};
    multiply_f32<T::kHeadDim / 8, 1>(
        x[0], [&](int step, float(&a)[4]) { load_a_f32(a, keys, step * 8); },
        [&](int step, int n, float(&b)[2]) { load_rows_f32(b, queries, first_query() + n * 8, step * 8); });
    store_pairs(of_dp ? smem.ds : smem.p, x, own_query());
  }

  // visit(place of two pairs in shared memory, first, second) for those of x, whose first query is given.
  using ProbRows = float[T::kKeys][T::kProbPitch];
  template <int N, class Visit>
  TILEWISE_DEVICE void each_two(ProbRows& rows, float (&x)[1][N][4], int query, Visit visit) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        visit(*reinterpret_cast<float2*>(&rows[own_key() + r * 8][query + n * 8]), x[0][n][r * 2], x[0][n][r * 2 + 1]);
      }
    }
  }
  template <int N>
  TILEWISE_DEVICE void store_pairs(ProbRows& to, float (&x)[1][N][4], int query) {
    each_two(to, x, query, [](float2& at, float& x, float& y) { at = {x, y}; });
  }

  TILEWISE_DEVICE void mask(Finished& s, const QueryBlock& b, int key, int query) {
#pragma unroll
    for (int n = 0; n < T::kFinishQueries / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int2 live = live_keys_of(p, work, block, b, query + n * 8 + j);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (key + r * 8 < live.x || key + r * 8 >= live.y) s[0][n][r * 2 + j] = -INFINITY;
        }
      }
    }
  }

  // dQ += dS K, with those of other blocks of keys.
  TILEWISE_DEVICE void add_dq(const QueryBlock& b) {
    float dq[T::kDqCols / 8][4] = {};  // [16 queries][own columns of dQ]
    multiply_f32<T::kKeys / 8, 1>(
        dq, [&](int step, float(&a)[4]) { load_a_columns_f32(a, smem.ds, step * 8, dq_row()); },
        [&](int step, int n, float(&x)[2]) { load_columns_f32(x, smem.k, step * 8, dq_col() + n * 8); });
    const Turns<T> turns{work, block.work_row, warp(), lane()};
    if (work.in_order) turns.await(b, blocks.turn(block, b), turns.look(b));
    float* const sum =
        work.dq_sum + (work_row_of(work, block, b) + dq_row()) * T::kHeadDim + dq_col() / 8 * 128 + lane() * 4;
#pragma unroll
    for (int n = 0; n < T::kDqCols / 8; ++n) ptx::red_add(sum + n * 128, dq[n]);
    if (work.in_order) turns.pass(b);
  }

  TILEWISE_DEVICE void store(const Gradient& x, float by, const Tensor& t) {
    if (!t) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key() + lane() / 4 + r * 8;
      if (key >= block.keys_left) continue;
      const int64_t at = t.offset(block.k_slot, block.first_token + key, block.kv_head);
#pragma unroll
      for (int n = 0; n < T::kOwnCols / 8; ++n) {
        const int column = own_col() + n * 8 + lane() % 4 * 2;
        if (column >= t.shape[3]) continue;
        store_gradient_pair(p, t, at + column, x[n][r * 2] * by, x[n][r * 2 + 1] * by);
      }
    }
  }

  const Problem& p;
  const BackwardWork& work;
  Storage& smem;
  const KeyBlock<T>& block = smem.block;
  RangeWalk<T> blocks{p, work, block};
  Gradient dk = {}, dv = {};
};

template <class T>
__global__ __launch_bounds__(T::kThreads, T::c.blocks) void backward_f32(const __grid_constant__ Problem p,
                                                                         const __grid_constant__ BackwardWork work) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& smem = *reinterpret_cast<BackwardF32Storage<T>*>(shared);
  const KeyBlock<T> block(p, work, draw_key_block(work, smem.ticket));
  if (block.keys_left <= 0) return;
  if (threadIdx.x == 0) smem.block = block;
  __syncthreads();
  BackwardF32<T> backward(p, work, smem);
  backward.walk();
  backward.store();
}

// ---- Launch.

template <int D>
Status BackwardF32Unit<D>::load(const Problem& p) {
  using Storage = BackwardF32Storage<BackwardF32Shape<D>>;
  return load_passes<float, D>(
      p, [] { return cuda::load("v2's backward_f32", backward_f32<BackwardF32Shape<D>>, sizeof(Storage)); });
}

template <int D>
Status BackwardF32Unit<D>::launch(const Problem& p, const BackwardWork& work, void* stream) {
  using T = BackwardF32Shape<D>;
  static_assert(sizeof(BackwardF32Storage<T>) <= int64_t{T::c.shared_kb} << 10);
  const Grid keys{.blocks = p.batch * p.heads_kv * work.key_blocks,
                  .threads = T::kThreads,
                  .shared_bytes = sizeof(BackwardF32Storage<T>)};
  return launch_passes<float, D>(
      p, work, stream, [&] { return cuda::launch("v2's backward_f32", backward_f32<T>, keys, stream, p, work); });
}

}  // namespace tilewise::cuda::v2
