// dbias: a thread block owns a tile of it, and visits the tiles of pairs that read it, of whatever sequences, heads,
// rows and keys, to find their dS again. So sums have one order along whichever axes bias repeats.
#pragma once

#include "cuda/common/copy_rows.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tile.cuh"
#include "cuda/common/tile_f32.cuh"
#include "cuda/v2/backward_pairs.cuh"
#include "cuda/v2/backward_walk.cuh"

namespace tilewise::cuda::v2 {

// ---- Tile. Head sizes are walked over in chunks of 128 bytes of columns, so that one kernel serves them all.

template <class E>
struct BiasShape {
  static constexpr int kKeys = kBiasTile, kQueries = kBiasTile, kKeyWarps = kKeys / 16, kQueryWarps = 2;
  static constexpr int kThreads = 32 * kKeyWarps * kQueryWarps, kOwnQueries = kQueries / kQueryWarps;
  static constexpr int kCopy = 16 / sizeof(E), kChunk = 8 * kCopy, kPitch = kChunk + kCopy;
};

template <class E>
struct BiasStorage {
  using T = BiasShape<E>;
  struct Operands {
    E k[T::kKeys][T::kPitch], v[T::kKeys][T::kPitch], q[T::kQueries][T::kPitch], dout[T::kQueries][T::kPitch];
  };
  union {
    Operands x;
    float sum[T::kQueries][T::kKeys + 1];  // at the end
  };
  float lse[T::kQueries], delta[T::kQueries];
  Sequence sequence;
};

// A tile of pairs, or of dbias: sequence, head, tile of rows, tile of keys.
struct BiasTile {
  int b, h, m, n;

  // Of dbias, in which units are counted.
  static TILEWISE_DEVICE BiasTile of_unit(const Tensor& dbias, uint32_t unit) {
    const uint32_t keys = ceil_div(dbias.shape[3], kBiasTile), rows = ceil_div(dbias.shape[2], kBiasTile);
    const uint32_t line = unit / keys, head = line / rows, heads = dbias.shape[1];
    return {int(head / heads), int(head % heads), int(line % rows), int(unit % keys)};
  }
  // Of those that read this one, which has index 0 along each axis that repeats.
  TILEWISE_DEVICE BiasTile reader(const Problem& p, const BiasWork& bias, int64_t index) const {
    const int64_t* extent = p.dbias.shape;
    const uint32_t keys = extent[3] == 1 ? bias.key_tiles : 1, rows = extent[2] == 1 ? bias.row_tiles : 1;
    const uint32_t heads = extent[1] == 1 ? p.heads : 1, head = index / (int64_t{keys} * rows);
    const uint32_t within = index - int64_t{head} * keys * rows;
    return {b + int(head / heads), h + int(head % heads), m + int(within / keys), n + int(within % keys)};
  }
  // visit(i, offset) for the thread's elements of the tile that dbias has.
  template <int kThreads, class Visit>
  TILEWISE_DEVICE void each(const Tensor& dbias, Visit visit) const {
    for (int i = threadIdx.x; i < kBiasTile * kBiasTile; i += kThreads) {
      const int64_t row = int64_t{m} * kBiasTile + i / kBiasTile, key = int64_t{n} * kBiasTile + i % kBiasTile;
      if (row < dbias.shape[2] && key < dbias.shape[3]) visit(i, dbias.offset(b, h, row, key));
    }
  }
};

// One tile of dbias, or a part of its sum.
template <class E>
class BiasGradient {
  using T = BiasShape<E>;
  using Rows = E[kBiasTile][T::kPitch];
  using Pairs = float[1][T::kOwnQueries / 8][4];  // key lane / 4 + i / 2 * 8, query 8 n + lane % 4 * 2 + i % 2

 public:
  TILEWISE_DEVICE BiasGradient(const Problem& p, const BackwardWork& work, const BiasWork& bias, BiasStorage<E>& smem)
      : p_(p),
        work_(work),
        bias_(bias),
        smem_(smem),
        tile_(BiasTile::of_unit(p.dbias, blockIdx.x % uint32_t(bias.units))) {}

  // Every splits-th of the tiles that read it.
  TILEWISE_DEVICE void add_all() {
    for (int64_t i = blockIdx.x / uint32_t(bias_.units); i < bias_.visits; i += bias_.splits) {
      add(tile_.reader(p_, bias_, i));
    }
  }

  // Sums over the axes that repeat within the tile; then to dbias, or to `parts` where the sum has several.
  TILEWISE_DEVICE void store() {
    const int key = first_key() + lane() / 4, query = first_query() + lane() % 4 * 2;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T::kOwnQueries / 2; ++i) {
      smem_.sum[query + i / 4 * 8 + i % 2][key + i % 4 / 2 * 8] = sum_[0][i / 4][i % 4];
    }
    __syncthreads();
    if (p_.dbias.shape[2] == 1) {
      for (int row = 1; row < T::kQueries && threadIdx.x < T::kKeys; ++row) {
        smem_.sum[0][threadIdx.x] += smem_.sum[row][threadIdx.x];
      }
      __syncthreads();
    }
    if (p_.dbias.shape[3] == 1) {
      for (int column = 1; column < T::kKeys && threadIdx.x < T::kQueries; ++column) {
        smem_.sum[threadIdx.x][0] += smem_.sum[threadIdx.x][column];
      }
      __syncthreads();
    }
    float* const part = bias_.parts + int64_t{blockIdx.x} * kBiasTile * kBiasTile;
    tile_.template each<T::kThreads>(p_.dbias, [&](int i, int64_t offset) {
      const float x = smem_.sum[i / T::kKeys][i % T::kKeys];
      if (bias_.splits == 1) {
        write_element(p_.dbias, offset, x);
      } else {
        part[i] = x;
      }
    });
  }

 private:
  static TILEWISE_DEVICE int first_key() { return warp() / T::kQueryWarps * 16; }
  static TILEWISE_DEVICE int first_query() { return warp() % T::kQueryWarps * T::kOwnQueries; }

  // The keys of the tile that some of its rows use: x <= j < y.
  TILEWISE_DEVICE int2 live_keys(const BiasTile& at, int64_t work_row) const {
    const int4* from = work_.ranges + ((keys_differ_by_head(p_) ? at.h * work_.rows : 0) + work_row) / kFragmentRows;
    const int4 range = range_of<T::kQueries>(from);
    const int keys = int(smem_.sequence.keys);  // wrong offsets may have left the ranges of another sequence
    return {range.x - at.n * T::kKeys, min(range.y, keys) - at.n * T::kKeys};
  }

  // dS of a tile.
  TILEWISE_DEVICE void add(const BiasTile& at) {
    const Sequence& s = smem_.sequence;
    __syncthreads();  // all are done with it
    if (threadIdx.x == 0) smem_.sequence = find_sequence(p_, at.b);
    __syncthreads();
    const int first_row = at.m * T::kQueries, first_key = at.n * T::kKeys, rows = int(s.rows) - first_row;
    if (rows <= 0 || first_key >= s.keys) return;
    const int64_t work_row = first_work_row(p_, s) + first_row;
    const int2 live = live_keys(at, work_row);
    if (live.y <= 0 || live.x >= T::kKeys) return;

    const int kv = at.h / int(p_.group());
    const auto is_key = [&](int key) { return key >= live.x && key < live.y; };
    const auto is_row = [&](int row) { return row < rows; };
    const auto copy_keys = [&](Rows& to, const Tensor& t, int column) {
      copy_rows<T::kThreads, T::kChunk>(to, t, key_offset(t, s, first_key, kv), column, is_key);
    };
    const auto copy_queries = [&](Rows& to, const Tensor& t, int column) {
      copy_rows<T::kThreads, T::kChunk>(to, t, row_offset(t, s, first_row, at.h), column, is_row);
    };
    Pairs scores = {}, dp = {};
    const int columns = int(greater(p_.head_dim, p_.value_dim));
    for (int column = 0; column < columns; column += T::kChunk) {
      if (column > 0) __syncthreads();  // all are done with the chunk before
      copy_keys(smem_.x.k, p_.k, column), copy_queries(smem_.x.q, p_.q, column);
      copy_keys(smem_.x.v, p_.v, column), copy_queries(smem_.x.dout, p_.dout, column);
      if (column == 0 && threadIdx.x < T::kQueries) {
        smem_.lse[threadIdx.x] = work_.lse[at.h * work_.rows + work_row + threadIdx.x];
        smem_.delta[threadIdx.x] = work_.delta[at.h * work_.rows + work_row + threadIdx.x];
      }
      ptx::cp_async_wait_all();
      __syncthreads();
      if (column < p_.head_dim) multiply_rows(scores, smem_.x.k, smem_.x.q);
      if (column < p_.value_dim) multiply_rows(dp, smem_.x.v, smem_.x.dout);
    }
    add_pairs(scores, dp, at, work_row);
  }

  // x += A B^T of a chunk of columns.
  TILEWISE_DEVICE void multiply_rows(Pairs& x, const Rows& keys, const Rows& queries) {
    if constexpr (std::is_same_v<E, float>) {
      const auto& own = reinterpret_cast<const float(&)[16][T::kPitch]>(keys[first_key()]);
      multiply_f32<T::kChunk / 8, 1>(
          x[0], [&](int step, float(&a)[4]) { load_a_f32(a, own, step * 8); },
          [&](int step, int n, float(&b)[2]) { load_rows_f32(b, queries, first_query() + n * 8, step * 8); });
    } else {
      const uint32_t a_at = ptx::smem_addr(&keys[first_key() + lane() % 16][lane() / 16 * 8]);
      const uint32_t b_at = ptx::smem_addr(&queries[first_query() + lane() % 8 + lane() / 16 * 8][lane() / 8 % 2 * 8]);
      multiply<E, T::kChunk / 16, T::kOwnQueries / 16, 1, false>(
          x, [&](int step, uint32_t(&a)[1][4]) { ptx::ldmatrix(a[0], a_at + step * 32); },
          [&](int step, int n, uint32_t(&b)[4]) { ptx::ldmatrix(b, b_at + (n * 16 * T::kPitch + step * 16) * 2); },
          [](int, int) {});
    }
  }

  // The final scores, then dS of them, to the sums.
  TILEWISE_DEVICE void add_pairs(Pairs& s, Pairs& dp, const BiasTile& at, int64_t work_row) {
    const int query = first_query() + lane() % 4 * 2, first = at.n * T::kKeys + first_key() + lane() / 4;
    PairTerms<1, T::kOwnQueries / 8> terms(p_, smem_.sequence, at.h, first, at.m * T::kQueries + query);
    terms.template finish<false>(s, dp, &smem_.delta[query]);
    const int2* live = work_.live + (keys_differ_by_head(p_) ? at.h * work_.rows : 0) + work_row + query;
#pragma unroll
    for (int n = 0; n < T::kOwnQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int2 keys = live[n * 8 + i % 2];
        const int key = first + i / 2 * 8;
        if (key < keys.x || key >= keys.y) s[0][n][i] = -INFINITY;
      }
    }
    terms.exponentiate(s, dp, &smem_.lse[query]);
#pragma unroll
    for (int i = 0; i < T::kOwnQueries / 2; ++i) sum_[0][i / 4][i % 4] += dp[0][i / 4][i % 4];
  }

  const Problem& p_;
  const BackwardWork& work_;
  const BiasWork& bias_;
  BiasStorage<E>& smem_;
  const BiasTile tile_;  // of dbias
  Pairs sum_ = {};
};

template <class E>
__global__ __launch_bounds__(BiasShape<E>::kThreads, 2) void find_dbias(const __grid_constant__ Problem p,
                                                                        const __grid_constant__ BackwardWork work,
                                                                        const __grid_constant__ BiasWork bias) {
  __shared__ __align__(128) uint8_t shared[sizeof(BiasStorage<E>)];
  auto& smem = *reinterpret_cast<BiasStorage<E>*>(shared);
  BiasGradient<E> gradient(p, work, bias, smem);
  gradient.add_all();
  gradient.store();
}

// The sums of the parts, in order.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void add_up_dbias(const __grid_constant__ Problem p,
                                                         const __grid_constant__ BiasWork bias) {
  const int64_t unit = blockIdx.x;
  BiasTile::of_unit(p.dbias, unit).each<kThreads>(p.dbias, [&](int i, int64_t offset) {
    double sum = 0;
    for (int64_t split = 0; split < bias.splits; ++split) {
      sum += bias.parts[(split * bias.units + unit) * kBiasTile * kBiasTile + i];
    }
    write_element(p.dbias, offset, static_cast<float>(sum));
  });
}

// ---- Launch.

template <class E>
Status BackwardBiasUnit<E>::load() {
  Status status = cuda::load("v2's find_dbias", find_dbias<E>, 0);
  if (status.ok()) status = cuda::load("v2's add_up_dbias", add_up_dbias<BiasShape<E>::kThreads>, 0);
  return status;
}

template <class E>
Status BackwardBiasUnit<E>::launch(const Problem& p, const BackwardWork& work, const BiasWork& bias, void* stream) {
  const Grid parts{.blocks = bias.units * bias.splits, .threads = BiasShape<E>::kThreads};
  const Grid units{.blocks = bias.units, .threads = BiasShape<E>::kThreads};
  Status status = cuda::launch("v2's find_dbias", find_dbias<E>, parts, stream, p, work, bias);
  if (status.ok() && bias.splits > 1) {
    status = cuda::launch("v2's add_up_dbias", add_up_dbias<BiasShape<E>::kThreads>, units, stream, p, bias);
  }
  return status;
}

}  // namespace tilewise::cuda::v2
