// Standard attention on a GPU (src/cuda/standard/), between the L2 cache and the multiprocessors: what each of its
// kernels reads and writes for n rows x m keys of a head. A tile of a product copies its rows and its columns of both
// factors. The softmax goes through a row twice, and finds it in L1 the second time only as long as the rows of all
// thread blocks of a multiprocessor fit there. The products are those of Tilewise: a library's have other tiles.
#include "core/numbers.h"
#include "traffic/live.h"

namespace tilewise {
namespace {

constexpr int64_t kPiece = 8;            // columns that squares are read and written by
constexpr int64_t kDimsOfTile = 128;     // of O and the gradients
constexpr int64_t kL1Bytes = 192 << 10;  // of a multiprocessor, A100 and later
constexpr int64_t kRowsAtOnce = 32;      // thread blocks of a multiprocessor

// One head.
struct Head {
  int64_t rows, keys;            // n, m in whole pieces
  int64_t row_tiles, key_tiles;  // of the squares
  int64_t score, prob;           // bytes of an element of S and dP, of P and dS

  int64_t scores() const { return rows * keys * score; }
  int64_t probs() const { return rows * keys * prob; }
};

Head head_of(const Problem& p, const Sequence& s, KeyRange hull, int64_t tile_rows, int64_t tile_keys) {
  const int64_t element = size_of(p.type), keys = round_up(hull.hi, kPiece) - round_down(hull.lo, kPiece);
  const int64_t key_tiles = hull.empty() ? 0 : ceil_div(hull.hi, tile_keys) - hull.lo / tile_keys;
  return {s.rows, keys, ceil_div(s.rows, tile_rows), key_tiles, p.type == Type::f16 ? 4 : element, element};
}

// S = Q K^T, dP = dO V^T: a square out of factors of so many dims.
void make_square(const Head& h, int64_t dims, Traffic& t) {
  t.bytes_read += copied((h.rows * h.key_tiles + h.row_tiles * h.keys) * dims * h.prob);
  t.bytes_written += h.scores();
  t.device_bytes += h.scores();
}

// O = P V, dQ = dS K (lines = rows); dV = P^T dO, dK = dS^T Q (lines = keys): what is read.
void read_square(const Head& h, int64_t line_tiles, int64_t depth, int64_t dims, Traffic& t) {
  t.bytes_read += copied(h.probs() * ceil_div(dims, kDimsOfTile) + line_tiles * depth * dims * h.prob);
  t.device_bytes += h.probs();
}

void forward(const Problem& p, const Head& h, Traffic& t) {
  make_square(h, p.head_dim, t);
  const bool stays_in_l1 = kRowsAtOnce * h.keys * h.score <= kL1Bytes;
  t.bytes_read += (stays_in_l1 ? 1 : 2) * h.scores();  // softmax
  t.bytes_written += h.probs();
  t.device_bytes += h.scores() + h.probs();
  read_square(h, h.row_tiles, h.keys, p.value_dim, t);
  t.bytes_written += h.rows * (p.value_dim * size_of(p.out.type) + (p.lse ? 4 : 0));
  if (p.prior_lse) t.bytes_read += h.rows * (p.value_dim * 4 + 4);
}

void backward(const Problem& p, const Head& h, Traffic& t) {
  const int64_t dout = p.value_dim * size_of(p.dout.type), out = p.value_dim * size_of(p.out.type);
  t.bytes_read += h.rows * (dout + out + 4 + (p.dlse ? 4 : 0));  // delta
  make_square(h, p.head_dim, t);
  make_square(h, p.value_dim, t);
  const int64_t times = p.dbias && p.softcap > 0 ? 2 : 1;
  t.bytes_read += times * 2 * h.scores();  // P, dS
  t.bytes_written += times * 2 * h.probs();
  t.device_bytes += times * 2 * (h.scores() + h.probs());
  if (p.dv) read_square(h, h.key_tiles, h.rows, p.value_dim, t);
  if (p.dk) read_square(h, h.key_tiles, h.rows, p.head_dim, t);
  if (p.dq) {
    read_square(h, h.row_tiles, h.keys, p.head_dim, t);
    t.bytes_read += p.accumulate ? h.rows * p.head_dim * 4 : 0;
    t.bytes_written += h.rows * p.head_dim * size_of(p.dq.type);
  }
}

// dK or dV of a kv head.
void write_keys(const Problem& p, const Tensor& gradient, int64_t dims, int64_t keys, Traffic& t) {
  if (!gradient) return;
  t.bytes_written += keys * dims * size_of(gradient.type);
  t.bytes_read += p.accumulate ? keys * dims * 4 : 0;
}

}  // namespace

Traffic standard_traffic_on_gpu(const LiveProblem& live, const Sizing& tile, const GpuCache& cache) {
  const Problem& p = *live;
  Traffic total;
  live.each_group([&](const Sequence& s, int64_t h, int64_t times) {
    const Head head = head_of(p, s, live.hull(s, h, p.group()), tile.query_rows, tile.keys);
    Traffic of_head, of_group;
    (p.pass == Pass::forward ? forward : backward)(p, head, of_head);
    write_keys(p, p.dk, p.head_dim, s.keys, of_group);
    write_keys(p, p.dv, p.value_dim, s.keys, of_group);
    of_group.bytes_read += live.term_bytes(s, h, p.group());
    add(of_head, p.group() * times, total);
    add(of_group, times, total);
  });
  if (cache.holds_sums(static_cast<int64_t>(tile.workspace_bytes))) total.device_bytes = 0;
  return total;
}

}  // namespace tilewise
