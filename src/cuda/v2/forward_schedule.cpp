#include "cuda/v2/forward_schedule.h"

#include "core/numbers.h"

namespace tilewise::cuda::v2 {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;  // of what is counted in 32 bits, with room for sums

// Bytes of L2 that the keys and values of a section may fill: tuned where L2 holds 50 MB.
constexpr int64_t kCachedBytes = int64_t{32} << 20;

// Whether rows can be copied in pieces of so many bytes.
bool comes_in(int64_t bytes, const Tensor& t) {
  const auto fit = [&](int64_t elements) { return elements * size_of(t.type) % bytes == 0; };
  return t.stride[3] == 1 && fit(t.stride[0]) && fit(t.stride[1]) && fit(t.stride[2]) &&
         reinterpret_cast<uintptr_t>(t.data) % bytes == 0;
}

// Bytes of a piece of eight keys or a part of them; 0 if elements have to be read one by one.
uint8_t piece_of(const Tensor& t) {
  constexpr uint8_t kLeast = 4;
  const auto most = static_cast<uint8_t>(lesser(8 * size_of(t.type), 16));
  return comes_in(most, t) ? most : comes_in(kLeast, t) ? kLeast : 0;
}

}  // namespace

Divisor divisor_of(int64_t value) {
  Divisor made{.value = static_cast<int>(greater(1, value))};
  while ((int64_t{1} << made.shift) < made.value) ++made.shift;
  made.factor = static_cast<uint32_t>(ceil_div(int64_t{1} << (31 + made.shift), made.value));
  return made;
}

ForwardSchedule schedule_of(const Problem& p, int rows_of_tile) {
  const int64_t row_blocks = ceil_div(p.max_rows, rows_of_tile), heads = p.batch * p.heads;
  const int64_t head_bytes = greater(1, p.max_keys * (p.head_dim + p.value_dim) * size_of(p.type));
  ForwardSchedule made;
  made.tiles = static_cast<int>(row_blocks * heads);
  made.row_blocks = divisor_of(row_blocks);
  made.section = static_cast<int>(clamp(kCachedBytes / head_bytes, 1, greater(1, heads)));
  made.all_heads = static_cast<int>(heads);
  made.heads = divisor_of(p.heads);
  made.group = divisor_of(p.group());
  made.rows = static_cast<int>(p.max_rows);
  made.keys = static_cast<int>(p.causal && p.top_left ? lesser(p.max_keys, p.max_rows) : p.max_keys);
  made.diagonal = static_cast<int>(p.top_left ? 0 : p.max_keys - p.max_rows);
  made.finishes_scores = p.softcap != 0 || p.bias || p.alibi_slopes;
  if (p.bias) made.bias_piece = piece_of(p.bias);
  if (p.mask) made.mask_piece = piece_of(p.mask);
  made.scores_in_turns = (p.bias && made.bias_piece == 0) || (p.mask && made.mask_piece == 0) ||
                         (p.bias && p.mask) ||                         // there is room for one of them
                         (p.batch_invariant && (p.bias || p.mask)) ||  // strides depend on the batch
                         (p.alibi_slopes && p.k_positions);
  made.plain_scores = !made.finishes_scores && !p.mask;
  made.fetches = (p.bias || p.mask) && !made.scores_in_turns;
  if (p.softcap != 0) made.scale_before_tanh = scale_before_tanh(p.softmax_scale, p.softcap);
  made.scale = score_scale_of(made.finishes_scores ? 1 : p.softmax_scale);
  return made;
}

bool fits_schedule(const Problem& p, int rows_of_tile, Text& why_not) {
  const int64_t row_blocks = ceil_div(p.max_rows, rows_of_tile), heads = p.batch * p.heads;
  if (p.max_rows > kMost || p.max_keys > kMost) {
    why_not.format("a sequence of %lld rows and %lld keys: it counts to 2^30", ll(p.max_rows), ll(p.max_keys));
  } else if (heads > kMost || row_blocks > kMost / greater(1, heads)) {
    why_not.format("%lld blocks of rows of %lld heads: it counts to 2^30", ll(row_blocks), ll(heads));
  }
  return why_not.empty();
}

}  // namespace tilewise::cuda::v2
