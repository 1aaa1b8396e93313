#include "core/unowned.h"

#include <cmath>
#include <cstring>

#include "core/sequence.h"

namespace tilewise {
namespace {

struct Span {
  int64_t slot, begin, end;
};

// Rows (or keys) [begin, end) of a tensor (slot, row, head, dim).
void clear(const Tensor& tensor, Span rows) {
  if (!tensor) return;
  const int64_t size = size_of(tensor.type);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t head = 0; head < tensor.shape[2]; ++head) {
      std::memset(tensor.data + tensor.offset(rows.slot, row, head) * size, 0,
                  static_cast<size_t>(tensor.shape[3] * size));
    }
  }
}

void clear_lse(const Tensor& lse, Span rows) {
  if (!lse) return;
  for (int64_t head = 0; head < lse.shape[1]; ++head) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t at = lse.offset(rows.slot, head, row);
      if (lse.type == Type::f64) {
        reinterpret_cast<double*>(lse.data)[at] = -INFINITY;
      } else {
        reinterpret_cast<float*>(lse.data)[at] = -INFINITY;
      }
    }
  }
}

void clear_rows(const Problem& problem, Span rows) {
  if (problem.pass == Pass::forward) {
    clear(problem.out, rows);
    clear_lse(problem.lse, rows);
  } else if (!problem.accumulate) {
    clear(problem.dq, rows);
  }
}

void clear_keys(const Problem& problem, Span keys) {
  if (problem.pass == Pass::forward || problem.accumulate) return;
  clear(problem.dk, keys);
  clear(problem.dv, keys);
}

}  // namespace

void clear_unowned(const Problem& problem) {
  const bool all_rows_owned = !problem.packed_q && !problem.seqused_q;
  const bool all_keys_owned = !problem.packed_k && !problem.seqused_k;
  if (all_rows_owned && (all_keys_owned || problem.pass == Pass::forward)) return;
  int64_t rows_done = 0, keys_done = 0;  // of the packed tensors
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_of(problem, b);
    if (problem.packed_q) {
      clear_rows(problem, {0, rows_done, s.first_row});
      rows_done = s.first_row + s.rows;
    } else {
      clear_rows(problem, {s.q_slot, s.rows, problem.q.shape[1]});
    }
    if (problem.packed_k) {
      clear_keys(problem, {0, keys_done, s.first_key});
      keys_done = s.first_key + s.keys;
    } else {
      clear_keys(problem, {s.k_slot, s.keys, problem.k.shape[1]});
    }
  }
  if (problem.packed_q) clear_rows(problem, {0, rows_done, problem.q.shape[1]});
  if (problem.packed_k) clear_keys(problem, {0, keys_done, problem.k.shape[1]});
}

}  // namespace tilewise
