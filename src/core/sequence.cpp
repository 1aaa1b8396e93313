#include "core/sequence.h"

#include "core/find_sequence.h"

namespace tilewise {

Sequence sequence_of(const Problem& problem, int64_t b) { return find_sequence(problem, b); }

int64_t row_position(const Problem& problem, const Sequence& sequence, int64_t i) {
  return find_row_position(problem, sequence, i);
}

int64_t key_position(const Problem& problem, const Sequence& sequence, int64_t j) {
  return find_key_position(problem, sequence, j);
}

}  // namespace tilewise
