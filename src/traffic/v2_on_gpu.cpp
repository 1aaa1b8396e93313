// FlashAttention-2 on a GPU (src/cuda/v2/), between the L2 cache and the multiprocessors. Forward: a tile of a head's
// rows stays while its blocks of keys pass, whole ones. Backward: a block of keys stays while the blocks of queries
// pass that see it, and adds its part of each dQ to a sum in device memory; kernels before and after it clear the sums,
// find rowsum(dO * O), and write dQ in its type.
#include <algorithm>

#include "core/numbers.h"
#include "traffic/live.h"

namespace tilewise {
namespace {

constexpr int64_t kPaddedDims[] = {64, 96, 128, 192, 256};  // columns of a sum of dQ
int64_t padded(int64_t dim) {
  const int64_t* const fits = std::lower_bound(std::begin(kPaddedDims), std::end(kPaddedDims) - 1, dim);
  return *fits;
}

// One query head.
Traffic forward(const LiveProblem& live, const Sequence& s, int64_t h, int64_t query_rows, int64_t block_keys) {
  const Problem& p = *live;
  const int64_t element = size_of(p.type);
  Traffic t;
  for (int64_t first = 0; first < s.rows; first += query_rows) {
    const KeyRange hull = live.hull(s, h, 1, first, std::min(query_rows, s.rows - first));
    if (hull.empty()) continue;
    const int64_t keys = std::min(s.keys, round_up(hull.hi, block_keys)) - round_down(hull.lo, block_keys);
    t.bytes_read += copied(keys * (p.head_dim + p.value_dim) * element);
  }
  t.bytes_read += copied(s.rows * p.head_dim * element) + (p.prior_lse ? s.rows * (p.value_dim * 4 + 4) : 0);
  t.bytes_written += s.rows * (p.value_dim * size_of(p.out.type) + (p.lse ? 4 : 0));
  return t;
}

// The heads of a kv head from h on.
Traffic backward(const LiveProblem& live, const Sequence& s, int64_t h, int64_t query_rows, int64_t block_keys) {
  const Problem& p = *live;
  const int64_t element = size_of(p.type), rows = s.rows * live->group(), sum = padded(p.head_dim) * 4;
  const int64_t dout = p.value_dim * size_of(p.dout.type), out = p.value_dim * size_of(p.out.type);
  const KeyRange hull = live.hull(s, h, live->group());
  const KeyRange blocks{round_down(hull.lo, block_keys), hull.hi};
  int64_t visits = 0;
  for (int64_t g = h; g < h + live->group(); ++g) visits += live.row_visits(s, g, blocks, query_rows, block_keys);

  Traffic t;
  t.bytes_read += rows * (dout + out + 4 + (p.dlse ? 4 : 0));  // what a row's LSE and rowsum(dO * O) are found from
  t.bytes_written += rows * 8;
  t.bytes_read += copied((hull.hi - hull.lo) * (p.head_dim + p.value_dim) * element);
  t.bytes_read += visits * copied(p.head_dim * element + dout + 8);
  if (p.dq) {
    t.bytes_written += (rows + visits) * sum;  // zeros, then what each block of keys adds
    t.bytes_read += rows * (sum + (p.accumulate ? p.head_dim * 4 : 0));
    t.bytes_written += rows * p.head_dim * size_of(p.dq.type);
  }
  const int64_t key = p.head_dim * size_of(p.dk.type) + p.value_dim * size_of(p.dv.type);
  t.bytes_read += p.accumulate ? s.keys * key : 0;
  t.bytes_written += s.keys * key;
  return t;
}

}  // namespace

Traffic v2_traffic_on_gpu(const LiveProblem& live, const Sizing& tile) {
  const int64_t query_rows = tile.query_rows, keys = tile.keys;
  Traffic total;
  live.each_group([&](const Sequence& s, int64_t h, int64_t times) {
    Traffic t;
    if (live->pass == Pass::forward) {
      for (int64_t g = h; g < h + live->group(); ++g) add(forward(live, s, g, query_rows, keys), 1, t);
    } else {
      t = backward(live, s, h, query_rows, keys);
    }
    t.bytes_read += live.term_bytes(s, h, live->group());
    add(t, times, total);
  });
  return total;
}

}  // namespace tilewise
