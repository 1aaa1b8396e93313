#include "core/mask.h"

#include "core/find_keys.h"

namespace tilewise {

KeyRange live_keys(const Problem& problem, const Sequence& sequence, int64_t h, int64_t i) {
  return find_live_keys(problem, sequence, h, i);
}

}  // namespace tilewise
