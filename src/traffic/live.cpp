#include "traffic/live.h"

#include <algorithm>

#include "core/fields.h"
#include "core/numbers.h"

namespace tilewise {
namespace {

void drop_without_data(Tensor& t) {
  if (t && !t.data) t = Tensor{};
}

}  // namespace

LiveProblem::LiveProblem(const Problem& given) : problem_(given) {
  if (given.device_type == TW_CUDA) {  // the host reads no device memory
    for (const auto& field : kProblemFields) (problem_.*field.tensor).data = nullptr;
  }
  for (Tensor* t : {&problem_.seqused_q, &problem_.seqused_k, &problem_.leftpad_k, &problem_.batch_index_k,
                    &problem_.key_begin, &problem_.key_end, &problem_.cu_seqlens_q, &problem_.cu_seqlens_k})
    drop_without_data(*t);
  if (!problem_.q_positions.data || !problem_.k_positions.data) problem_.q_positions = problem_.k_positions = Tensor{};
  readable_ = problem_;
  readable_.packed_q = problem_.packed_q && problem_.cu_seqlens_q;
  readable_.packed_k = problem_.packed_k && problem_.cu_seqlens_k;
}

Sequence LiveProblem::sequence(int64_t b) const {
  const auto slot = [&](bool packed, const Tensor& offsets, int64_t total, int64_t most) {
    return packed && !offsets ? std::min(most, total / std::max<int64_t>(1, problem_.batch)) : int64_t{-1};
  };
  const int64_t rows = slot(problem_.packed_q, problem_.cu_seqlens_q, problem_.total_rows, problem_.max_rows);
  const int64_t keys = slot(problem_.packed_k, problem_.cu_seqlens_k, problem_.total_keys, problem_.max_keys);
  Sequence s = sequence_of(readable_, b);
  if (rows >= 0) s.rows = rows;
  if (keys >= 0) s.keys = keys;
  return s;
}

KeyRange LiveProblem::hull(const Sequence& s, int64_t h, int64_t heads, int64_t first, int64_t count) const {
  RowsRange rows;
  const bool by_head = keys_differ_by_head(problem_);
  for (int64_t row = first; row < first + count; row += by_head ? 1 : heads - row % heads)
    rows.add(live(s, h + row % heads, row / heads));
  return rows.hull();
}

int64_t LiveProblem::pairs(const Sequence& s, int64_t h, int64_t heads) const {
  int64_t pairs = 0;
  const bool by_head = keys_differ_by_head(problem_);
  for (int64_t g = 0; g < (by_head ? heads : 1); ++g)
    for (int64_t i = 0; i < s.rows; ++i) {
      const KeyRange row = live(s, h + g, i);
      pairs += (row.hi - row.lo) * (by_head ? 1 : heads);
    }
  return pairs;
}

int64_t LiveProblem::term_bytes(const Sequence& s, int64_t h, int64_t heads) const {
  int64_t bytes = problem_.bias ? pairs(s, h, heads) * size_of(problem_.bias.type) : 0;
  if (!problem_.mask) return bytes;
  for (int64_t g = 0; g < heads; ++g)
    for (int64_t i = 0; i < s.rows; ++i) {
      const KeyRange row = live(s, h + g, i);
      bytes += std::max<int64_t>(0, row.hi - std::max(row.lo, s.mask_first_key));
    }
  return bytes;
}

int64_t LiveProblem::row_visits(const Sequence& s, int64_t h, KeyRange hull, int64_t rows, int64_t keys) const {
  int64_t visits = 0;
  for (int64_t first = 0; first < s.rows; first += rows) {
    const int64_t count = std::min(rows, s.rows - first);
    const KeyRange used = this->hull(s, h, 1, first, count);
    if (used.empty()) continue;
    visits += count * (ceil_div(used.hi - hull.lo, keys) - (used.lo - hull.lo) / keys);
  }
  return visits;
}

}  // namespace tilewise
