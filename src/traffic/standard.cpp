// Standard attention: n rows x m keys a head, squares of 4 n m bytes. The products read one factor again for each block
// of the other: N^2 d / Br = 4 N^2 d^2 / M elements, less than the squares' N^2 while d^2 <= M / 4. So it moves N^2 + N
// d.
#include "cpu/common/blocks.h"
#include "traffic/live.h"

namespace tilewise {
namespace {

void forward(const Problem& p, int64_t n, int64_t m, const cpu::Blocks& blocks, Traffic& t) {
  const int64_t square = 4 * n * m, element = size_of(p.type), row_blocks = ceil_div(n, blocks.rows);
  t.bytes_read += (n + row_blocks * m) * p.head_dim * element;  // S = Q K^T
  t.bytes_written += square;
  t.bytes_read += square;  // scale, mask, m
  t.bytes_written += square + 4 * n;
  t.bytes_read += square + 4 * n;  // P = exp(S - m), l
  t.bytes_written += square + 4 * n;
  t.bytes_read += square + 4 * n;  // P / l
  t.bytes_written += square;
  t.bytes_read += square + 8 * n + row_blocks * m * p.value_dim * element;  // O = P V
  t.bytes_written += n * (p.value_dim * size_of(p.out.type) + (p.lse ? 4 : 0));
  if (p.prior_lse) t.bytes_read += n * (p.value_dim * 4 + 4);
}

// Of one head; what its group's dK and dV cost is in key_gradient.
void backward(const Problem& p, int64_t n, int64_t m, const cpu::Blocks& blocks, Traffic& t) {
  const int64_t square = 4 * n * m, element = size_of(p.type);
  const int64_t row_blocks = ceil_div(n, blocks.rows), key_blocks = ceil_div(m, blocks.keys);
  const int64_t dout = p.value_dim * size_of(p.dout.type), out = p.value_dim * size_of(p.out.type);
  t.bytes_read += (n + row_blocks * m) * p.head_dim * element;  // S = Q K^T
  t.bytes_written += square;
  t.bytes_read += square + 4 * n;  // P = exp(S - LSE)
  t.bytes_written += square + 4 * n;
  if (p.softcap > 0) t.bytes_written += square;
  t.bytes_read += n * dout + row_blocks * m * p.value_dim * element;  // dP = dO V^T
  t.bytes_written += square;
  t.bytes_read += 2 * square + n * (dout + out + (p.dlse ? 4 : 0));  // dS
  t.bytes_written += p.dropout.threshold ? 2 * square : square;
  if (p.dv) t.bytes_read += square + key_blocks * n * dout;
  if (p.softcap > 0) t.bytes_read += 2 * square, t.bytes_written += square;
  if (p.dq) {
    t.bytes_read += square + row_blocks * m * p.head_dim * element + (p.accumulate ? n * p.head_dim * 4 : 0);
    t.bytes_written += n * p.head_dim * size_of(p.dq.type);
  }
  if (p.dk) t.bytes_read += square + key_blocks * n * p.head_dim * element;
}

// dK or dV of one kv head: sums between its heads if they are not at work together, then the gradient.
void key_gradient(const Problem& p, const Tensor& gradient, int64_t dims, int64_t keys, int64_t used, Traffic& t) {
  if (!gradient) return;
  const int64_t group = p.group(), hand_overs = cpu::standard_memory(p).heads < group ? group - 1 : 0;
  t.bytes_read += hand_overs * used * dims * 4 + (p.accumulate ? used * dims * 4 : 0);
  t.bytes_written += hand_overs * used * dims * 4 + (p.accumulate ? used : keys) * dims * size_of(gradient.type);
}

}  // namespace

Traffic standard_traffic(const LiveProblem& live, int64_t fast_memory) {
  const Problem& p = *live;
  const cpu::Blocks blocks = cpu::standard_blocks(p, fast_memory);
  Traffic total;
  live.each_group([&](const Sequence& s, int64_t h, int64_t times) {
    const KeyRange hull = live.hull(s, h, live->group());
    const int64_t used = hull.hi - hull.lo;
    Traffic head, group;
    (p.pass == Pass::forward ? forward : backward)(p, s.rows, used, blocks, head);
    key_gradient(p, p.dk, p.head_dim, s.keys, used, group);
    key_gradient(p, p.dv, p.value_dim, s.keys, used, group);
    group.bytes_read += live.term_bytes(s, h, live->group());
    add(head, live->group() * times, total);
    add(group, times, total);
  });
  return total;
}

}  // namespace tilewise
