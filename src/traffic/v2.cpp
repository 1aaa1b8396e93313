// FlashAttention-2's order, which `tiled` follows. Forward: a block of query rows stays with its O while the keys pass
// once: N / Br * N d elements of K and V. Backward: a chunk of keys stays with its dK and dV while the query blocks
// pass, and hands on dQ. With Br = M / 4d both move N^2 d^2 / M + N d.
#include <algorithm>

#include "core/numbers.h"
#include "traffic/live.h"

namespace tilewise {
namespace {

Traffic forward(const LiveProblem& live, const Sequence& s, int64_t h, int64_t query_rows) {
  const Problem& p = *live;
  const int64_t element = size_of(p.type), rows = s.rows * live->group();
  Traffic t;
  for (int64_t first = 0; first < rows; first += query_rows) {
    const int64_t count = std::min(query_rows, rows - first);
    const KeyRange keys = live.hull(s, h, live->group(), first, count);
    t.bytes_read += (keys.hi - keys.lo) * (p.head_dim + p.value_dim) * element;
  }
  t.bytes_read += rows * (p.head_dim * element + (p.prior_lse ? p.value_dim * 4 + 4 : 0));
  t.bytes_written += rows * (p.value_dim * size_of(p.out.type) + (p.lse ? 4 : 0));
  return t;
}

Traffic backward(const LiveProblem& live, const Sequence& s, int64_t h, int64_t query_rows, int64_t chunk_keys) {
  const Problem& p = *live;
  const int64_t element = size_of(p.type), rows = s.rows * live->group();
  const int64_t dout_and_out = p.value_dim * (size_of(p.dout.type) + size_of(p.out.type));
  const KeyRange hull = live.hull(s, h, live->group());
  const int64_t key = p.head_dim * size_of(p.dk.type) + p.value_dim * size_of(p.dv.type);
  Traffic t;
  t.bytes_read += (hull.hi - hull.lo) * (p.head_dim + p.value_dim) * element + (p.accumulate ? s.keys * key : 0);
  t.bytes_written += s.keys * key;
  for (int64_t first = 0; first < rows; first += query_rows) {
    const int64_t count = std::min(query_rows, rows - first);
    const KeyRange keys = live.hull(s, h, live->group(), first, count);
    const int64_t chunks = keys.empty() ? 0 : ceil_div(keys.hi, chunk_keys) - keys.lo / chunk_keys;
    t.bytes_read += chunks * count * (p.head_dim * element + dout_and_out + (p.dlse ? 8 : 4));
    if (!p.dq) continue;
    const int64_t hand_overs = std::max<int64_t>(0, chunks - 1);
    t.bytes_read += (hand_overs + (p.accumulate ? 1 : 0)) * count * p.head_dim * 4;
    t.bytes_written += count * p.head_dim * (hand_overs * 4 + size_of(p.dq.type));
  }
  return t;
}

}  // namespace

Traffic v2_traffic(const LiveProblem& live, int64_t query_rows, int64_t chunk_keys) {
  Traffic total;
  live.each_group([&](const Sequence& s, int64_t h, int64_t times) {
    Traffic t =
        live->pass == Pass::forward ? forward(live, s, h, query_rows) : backward(live, s, h, query_rows, chunk_keys);
    t.bytes_read += live.term_bytes(s, h, live->group());
    add(t, times, total);
  });
  return total;
}

}  // namespace tilewise
