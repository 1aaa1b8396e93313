#include <climits>

#include "core/find_keys.h"
#include "cuda/common/carver.h"
#include "cuda/common/launch.cuh"
#include "cuda/standard/squares.cuh"

namespace tilewise::cuda::standard {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 56;
constexpr int kThreads = 256;

// The smallest interval around those of all threads; call with all of them.
TILEWISE_DEVICE KeyRange hull_of_block(KeyRange own) {
  __shared__ int64_t lo[kThreads], hi[kThreads];
  lo[threadIdx.x] = own.lo, hi[threadIdx.x] = own.hi;
  __syncthreads();
  for (int n = kThreads / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) {
      lo[threadIdx.x] = lesser(lo[threadIdx.x], lo[threadIdx.x + n]);
      hi[threadIdx.x] = greater(hi[threadIdx.x], hi[threadIdx.x + n]);
    }
    __syncthreads();
  }
  return lo[0] < hi[0] ? KeyRange{lo[0], hi[0]} : KeyRange{};
}

// A block for each sequence and kv head.
__global__ __launch_bounds__(kThreads) void hulls(const __grid_constant__ Problem p,
                                                  const __grid_constant__ Squares q) {
  const int64_t b = blockIdx.x / p.heads_kv, h_kv = blockIdx.x % p.heads_kv, group = p.group();
  const Sequence s = find_sequence(p, b);
  RowsRange range;
  for (int64_t n = threadIdx.x; n < s.rows * (keys_differ_by_head(p) ? group : 1); n += kThreads) {
    range.add(find_live_keys(p, s, h_kv * group + n / s.rows, n % s.rows));
  }
  const KeyRange hull = hull_of_block(range.any);
  if (threadIdx.x == 0) q.hull(p, b, h_kv) = hull;
}

}  // namespace

void refuse(const Problem& p, Text& reason) {
  if (p.type != Type::f32 && p.type != Type::f16 && p.type != Type::bf16) {
    reason.format("q is %s: it multiplies fp32, fp16 and bf16", name_of(p.type));
    return;
  }
  if (p.pass == Pass::backward && p.dout.type != p.type) {
    reason.format("dout is %s and q is %s: it multiplies numbers of one type", name_of(p.dout.type), name_of(p.type));
    return;
  }
  if (rows_of_heads(p) > INT_MAX) {
    reason.format("%lld rows of all heads: a GPU starts 2^31 - 1 thread blocks at most", ll(rows_of_heads(p)));
    return;
  }
  const int64_t rows = greater(1, p.total_rows), row = round_up(greater(1, p.max_keys), kPiece);
  if (row > kMostElements / p.heads / rows) {
    reason.format("scores of %lld heads x %lld rows x %lld keys cannot be held in memory", ll(p.heads), ll(rows),
                  ll(p.max_keys));
  }
}

Squares lay_out(const Problem& p, char* workspace) {
  Carver carver{workspace};
  Squares q{};
  q.total_rows = p.total_rows;
  q.row = round_up(greater(1, p.max_keys), kPiece);
  const int64_t rows = p.heads * p.total_rows, pairs = rows * q.row, score = size_of(score_type(p)),
                prob = size_of(p.type);
  q.hulls = carver.take<KeyRange>(p.batch * p.heads_kv);
  q.lse = carver.take<float>(rows);
  q.scores = carver.take<char>(pairs * score);
  if (p.pass == Pass::forward) {
    q.sums = carver.take<float>(rows);
    q.probs = carver.take<char>(pairs * prob);
  } else {
    q.shift = carver.take<float>(rows);
    q.dprobs = carver.take<char>(pairs * score);
    // P takes the place of S, and dS that of dP, unless both are needed once more (score_gradients).
    const bool in_place = score == prob && !(p.dbias && p.softcap > 0);
    q.probs = in_place ? q.scores : carver.take<char>(pairs * prob);
    q.dscores = in_place ? q.dprobs : carver.take<char>(pairs * prob);
  }
  q.bytes = carver.used;
  return q;
}

Status load_hulls() { return load("cuda.standard.hulls", hulls, 0); }

Status find_hulls(const Problem& p, const Squares& squares, void* stream) {
  return launch("cuda.standard.hulls", hulls, {.blocks = p.batch * p.heads_kv, .threads = kThreads}, stream, p,
                squares);
}

}  // namespace tilewise::cuda::standard
