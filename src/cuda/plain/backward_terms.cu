// What plain's backward pass sums up over whole rows, heads and tensors: delta, dsink and dbias.
#include "cuda/common/row_shift.cuh"
#include "cuda/plain/backward.h"
#include "cuda/plain/pairs.cuh"

namespace tilewise::cuda::plain {
namespace {

// ---- dLSE - delta.

constexpr int kShiftRows = 4;  // of a warp

__global__ __launch_bounds__(kThreads) void find_row_shifts(const __grid_constant__ Problem p,
                                                            const __grid_constant__ Tensor shifts) {
  each_block(TokenBlocks::rows(p, kShiftRows), p.heads, [&](TokenBlock block, int64_t h) {
    const Sequence s = find_sequence(p, block.sequence);
    for (int64_t i = block.first; i < lesser(block.first + kShiftRows, s.rows); ++i) {
      const float shift = row_shift(p, s, h, i);
      if (lane() == 0) write_element(shifts, lse_offset(shifts, s, i, h), shift);
    }
  });
}

// ---- dsink. A block for a head.

__global__ __launch_bounds__(kSinkThreads) void dsink(const __grid_constant__ Problem p,
                                                      const __grid_constant__ Tensor shifts) {
  const int64_t h = blockIdx.x;
  sum_dsink(p, h, [&](const Sequence& s, int64_t i) { return read_element(shifts, lse_offset(shifts, s, i, h)); });
}

// ---- dbias.

// Warps that share the sum of an element when bias has few of them: no more than fill a GPU.
constexpr int64_t kEnoughWarps = 4096;
constexpr int64_t kPartialBytes = kWarp * sizeof(double);

int64_t repeats(int64_t extent, int64_t count) { return extent == 1 ? count : 1; }

// How dbias is cut: 32 keys of a line (sequence, head, row) are a unit, whose rows `splits` warps draw in turn.
struct BiasUnits {
  int64_t count, splits;

  explicit BiasUnits(const Problem& p) {
    const int64_t* n = p.dbias.shape;
    count = n[0] * n[1] * n[2] * ceil_div(n[3], kWarp);
    const int64_t rows = repeats(n[0], p.batch) * repeats(n[1], p.heads) * repeats(n[2], p.max_rows);
    splits = greater(1, lesser(rows, kEnoughWarps / greater(count, 1)));
  }
};

// An axis of bias that has the extent 1 repeats: all indices below `end` read it. Otherwise only its own does.
struct Readers {
  int64_t begin, end;

  TILEWISE_DEVICE Readers(int64_t extent, int64_t own, int64_t end)
      : begin(extent == 1 ? 0 : own), end(extent == 1 ? end : lesser(own + 1, end)) {}
  TILEWISE_DEVICE int64_t count() const { return greater(0, end - begin); }
};

// The element that a lane owns, if bias does not repeat along its keys; otherwise the line's one.
struct BiasPlace {
  int64_t b, h, i, key;  // the first of 32 keys

  TILEWISE_DEVICE BiasPlace(const Tensor& t, int64_t unit) {
    const int64_t *n = t.shape, keys = ceil_div(n[3], kWarp);
    key = unit % keys * kWarp;
    i = unit / keys % n[2];
    h = unit / keys / n[2] % n[1];
    b = unit / keys / n[2] / n[1];
  }

  TILEWISE_DEVICE void store(const Tensor& t, double sum) const {
    if (t.shape[3] == 1) sum = warp_sum(sum);
    const int64_t j = key + lane();
    if (j < t.shape[3]) write_element(t, t.offset(b, h, i, j), static_cast<float>(sum));
  }
};

// A row of a head: dS of all its keys, or of the 32 from a key on.
template <int kStrips>
class BiasRow {
 public:
  TILEWISE_DEVICE BiasRow(const Problem& p, const Tensor& shifts, const Sequence& s, int64_t h, int64_t i)
      : p_(p), row_(p, s, h, i), gradient_(row_gradient(p, shifts, s, h, i)), dropout_key_(dropout_key(p)) {
    if (!gradient_.is_live()) row_.live[0] = {};
  }

  TILEWISE_DEVICE void read() {
    read_row(p_.q, row_offset(p_.q, row_.s, row_.first, row_.h), q_);
    read_row(p_.dout, row_offset(p_.dout, row_.s, row_.first, row_.h), dout_);
  }

  TILEWISE_DEVICE KeyRange live() const { return row_.live[0]; }

  // Of the lane's key; 0 if the row does not use it.
  TILEWISE_DEVICE float score_gradient(int64_t key) const {
    uint32_t used[1];
    const uint32_t any = row_.find_used(p_, key, used);
    float qk = 0, dp = 0;
    each_of(any, [&](int n) {
      float k[kStrips], v[kStrips];
      read_row(p_.k, key_offset(p_.k, row_.s, key + n, row_.kv), k);
      read_row(p_.v, key_offset(p_.v, row_.s, key + n, row_.kv), v);
      const float x = dot(q_, k), y = dot(dout_, v);
      if (lane() == n) qk = x, dp = y;
    });
    if (!has(any, lane())) return 0;
    return pair_gradient(p_, dropout_key_, row_.s, row_.row[0], gradient_, key + lane(), qk, dp).ds;
  }

 private:
  const Problem& p_;
  RowBlock<1> row_;
  const RowGradient gradient_;
  const uint64_t dropout_key_;
  float q_[kStrips], dout_[kStrips];  // [D], [Dv]
};

// The sequence is looked up again, since registers are short.
template <int kStrips>
TILEWISE_DEVICE double row_term(const Problem& p, const Tensor& shifts, int64_t b, int64_t h, int64_t i,
                                int64_t first_key) {
  BiasRow<kStrips> row(p, shifts, find_sequence(p, b), h, i);
  const bool all_keys = p.dbias.shape[3] == 1;
  const int64_t begin = all_keys ? row.live().lo : first_key;
  const int64_t end = all_keys ? row.live().hi : lesser(first_key + kWarp, row.live().hi);
  if (begin >= end) return 0;
  row.read();
  double sum = 0;
  for (int64_t key = begin; key < end; key += kWarp) sum += row.score_gradient(key);
  __syncwarp();
  return sum;
}

// A warp for a part of a unit. Rows are counted through all heads and sequences that read the unit; a warp takes every
// splits-th one. Where a unit is one warp's, it writes dbias, else its own sums.
template <class T>
__global__ __launch_bounds__(kThreads, kBlocks) void dbias(const __grid_constant__ Problem p,
                                                           const __grid_constant__ Tensor shifts, int64_t units,
                                                           int64_t splits,
                                                           double* partials) {  // [splits][units][32]
  each_unit(units * splits, [&](int64_t index) {
    const int64_t split = index / units, unit = index % units, *n = p.dbias.shape;
    const BiasPlace place(p.dbias, unit);
    double sum = 0;
    int64_t wait = split;  // rows until this warp's next
    const Readers sequences(n[0], place.b, p.batch), heads(n[1], place.h, p.heads);
    for (int64_t b = sequences.begin; b < sequences.end; ++b) {
      const Readers rows(n[2], place.i, find_sequence(p, b).rows);
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        for (; wait < rows.count(); wait += splits) {
          sum += row_term<T::kStrips>(p, shifts, b, h, rows.begin + wait, place.key);
        }
        wait -= rows.count();
      }
    }
    if (splits == 1) {
      place.store(p.dbias, sum);
    } else {
      partials[index * kWarp + lane()] = sum;
    }
  });
}

// A warp for a unit: the sums of its parts, in order.
__global__ __launch_bounds__(kThreads) void add_up_dbias(const __grid_constant__ Problem p, int64_t units,
                                                         int64_t splits, const double* partials) {
  each_unit(units, [&](int64_t unit) {
    double sum = 0;
    for (int64_t split = 0; split < splits; ++split) sum += partials[(split * units + unit) * kWarp + lane()];
    BiasPlace(p.dbias, unit).store(p.dbias, sum);
  });
}

}  // namespace

// ---- Launches.

uint64_t row_shift_bytes(const Problem& p) {
  return static_cast<uint64_t>(round_up(p.total_rows * p.heads * int64_t{sizeof(float)}, 256));
}

Tensor row_shifts(const Problem& p, char* workspace) {
  const int64_t slots = p.q.shape[0], rows = p.q.shape[1];
  return {
      .data = workspace, .shape = {slots, p.heads, rows, 1}, .stride = {p.heads * rows, rows, 1, 0}, .type = Type::f32};
}

Status launch_row_shifts(const Problem& p, const Tensor& shifts, void* stream) {
  const Grid grid = grid_of(TokenBlocks::rows(p, kShiftRows).count() * p.heads);
  return launch("cuda.plain.row_shifts", find_row_shifts, grid, stream, p, shifts);
}

Status launch_sink_gradient(const Problem& p, const Tensor& shifts, void* stream) {
  return launch("cuda.plain.dsink", dsink, {.blocks = p.heads, .threads = kSinkThreads}, stream, p, shifts);
}

uint64_t bias_partial_bytes(const Problem& p) { return p.dbias ? kEnoughWarps * kPartialBytes : 0; }

Status launch_bias_gradient(const Problem& p, const Tensor& shifts, char* partials, void* stream) {
  const BiasUnits units(p);
  auto* const sums = reinterpret_cast<double*>(partials);
  Status status = with_tile(p, [&](auto tile) {
    return launch("cuda.plain.dbias", dbias<decltype(tile)>, grid_of(units.count * units.splits), stream, p, shifts,
                  units.count, units.splits, sums);
  });
  if (status.ok() && units.splits > 1) {
    status =
        launch("cuda.plain.dbias_sums", add_up_dbias, grid_of(units.count), stream, p, units.count, units.splits, sums);
  }
  return status;
}

Status load_backward_terms(const Problem& p) {
  Status status = load("cuda.plain.row_shifts", find_row_shifts, 0);
  if (status.ok() && p.dsink) status = load("cuda.plain.dsink", dsink, 0);
  if (status.ok() && p.dbias) status = load("cuda.plain.dbias_sums", add_up_dbias, 0);
  if (status.ok() && p.dbias) {
    status = with_tile(p, [](auto tile) { return load("cuda.plain.dbias", dbias<decltype(tile)>, 0); });
  }
  return status;
}

}  // namespace tilewise::cuda::plain
