// FlashAttention-1: each block of Bc keys lets all rows of Q and O pass: N / Bc * N d = 4 N^2 d^2 / M elements each.
#include <algorithm>

#include "cpu/common/blocks.h"
#include "traffic/live.h"

namespace tilewise {
namespace {

struct Schedule {
  cpu::Blocks blocks;
  int64_t splits;           // of the rows: each lets all keys pass
  bool own_output, own_dq;  // sums in fp32 memory of their own
  bool on_gpu = false;
  bool sums_pass = false, inputs_pass = false;  // GPU: through device memory, at each visit

  int64_t copy(int64_t bytes) const { return on_gpu ? copied(bytes) : bytes; }
};

// One query head: n rows, `used` keys, `visits` rows that pass blocks of keys.
void forward(const Problem& p, const Schedule& how, int64_t n, int64_t used, int64_t visits, Traffic& t) {
  const int64_t element = size_of(p.type), output = p.value_dim * 4, state = 8;  // of a row: O; l and m
  const int64_t readers = how.on_gpu ? 2 : 1;  // of l and m: the warps that share a row
  t.bytes_written += n * (output + state);
  t.bytes_read += how.copy(how.splits * used * (p.head_dim + p.value_dim) * element);
  t.bytes_read += visits * (how.copy(p.head_dim * element) + output + readers * state);
  t.bytes_written += visits * (output + state);
  t.bytes_read += n * readers * state + (how.own_output ? n * output : 0);
  t.bytes_written += n * ((how.own_output ? p.value_dim * size_of(p.out.type) : 0) + (p.lse ? 4 : 0));
  if (p.prior_lse) t.bytes_read += n * (p.value_dim * 4 + 4);
  if (how.sums_pass) t.device_bytes += 2 * (n + visits) * (output + state);
  if (how.inputs_pass) t.device_bytes += visits * p.head_dim * element;
}

// The heads of one kv head: n rows in all.
void backward(const Problem& p, const Schedule& how, int64_t n, int64_t keys, int64_t used, int64_t visits,
              Traffic& t) {
  const int64_t element = size_of(p.type), dq = p.head_dim * 4;
  const int64_t row = how.copy(p.head_dim * element + p.value_dim * size_of(p.dout.type));  // Q, dO
  const int64_t out_and_lse = p.value_dim * size_of(p.out.type) + 4 + (p.dlse ? 4 : 0);
  t.bytes_read += how.copy(used * (p.head_dim + p.value_dim) * element) + visits * (row + out_and_lse);
  if (p.dq) t.bytes_read += visits * dq, t.bytes_written += visits * dq + (p.accumulate ? 0 : n * dq);
  if (how.own_dq) t.bytes_read += n * dq, t.bytes_written += n * p.head_dim * size_of(p.dq.type);
  const int64_t key = p.head_dim * size_of(p.dk.type) + p.value_dim * size_of(p.dv.type);
  if (p.accumulate) t.bytes_read += used * key;
  t.bytes_written += (p.accumulate ? used : keys) * key;
  if (how.sums_pass && p.dq) t.device_bytes += 2 * (n + visits) * dq;
  if (how.inputs_pass)
    t.device_bytes += visits * (p.head_dim * element + p.value_dim * size_of(p.dout.type) + out_and_lse);
}

Traffic count(const LiveProblem& live, const Schedule& how) {
  const Problem& p = *live;
  const cpu::Blocks blocks = how.blocks;
  const int64_t group = live->group();
  Traffic total;
  live.each_group([&](const Sequence& s, int64_t h, int64_t times) {
    Traffic t;
    t.bytes_read = live.term_bytes(s, h, group);
    if (p.pass == Pass::forward) {
      for (int64_t g = h; g < h + group; ++g) {
        const KeyRange hull = live.hull(s, g, 1);
        forward(p, how, s.rows, hull.hi - hull.lo, live.row_visits(s, g, hull, blocks.rows, blocks.keys), t);
      }
    } else {
      const KeyRange hull = live.hull(s, h, group);
      int64_t visits = 0;
      for (int64_t g = h; g < h + group; ++g) visits += live.row_visits(s, g, hull, blocks.rows, blocks.keys);
      backward(p, how, group * s.rows, s.keys, hull.hi - hull.lo, visits, t);
    }
    add(t, times, total);
  });
  return total;
}

}  // namespace

Traffic v1_traffic(const LiveProblem& live, int64_t fast_memory) {
  const Problem& p = *live;
  return count(live, {.blocks = cpu::v1_blocks(p, fast_memory),
                      .splits = 1,
                      .own_output = p.out.type != Type::f32 || p.prior_lse,
                      .own_dq = p.dq && p.dq.type != Type::f32});
}

Traffic v1_traffic_on_gpu(const LiveProblem& live, const Sizing& tile, const GpuCache& cache) {
  const Problem& p = *live;
  const bool forward = p.pass == Pass::forward;
  const int64_t element = size_of(p.type);
  // Of a row of a head; as many heads are at work as there are multiprocessors.
  const int64_t sums = forward ? p.value_dim * 4 + 8 : p.head_dim * 4;
  const int64_t inputs =
      p.head_dim * element + (forward ? 0 : p.value_dim * (size_of(p.dout.type) + size_of(p.out.type)));
  const int64_t rows = std::min(p.batch * p.heads, cache.multiprocessors) * p.max_rows;
  return count(live, {.blocks = {tile.query_rows, tile.keys},
                      .splits = greater(1, tile.splits),
                      .own_output = true,
                      .own_dq = static_cast<bool>(p.dq),
                      .on_gpu = true,
                      .sums_pass = !cache.holds_sums(rows * (sums + inputs)),
                      .inputs_pass = !cache.holds_inputs(rows * (sums + inputs))});
}

}  // namespace tilewise
