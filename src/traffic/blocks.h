// Block sizes from the size of the fast memory, for the kernels that follow them and for the model that predicts them.
#pragma once

#include "core/problem.h"
#include "cpu/common/numbers.h"

namespace tilewise {

struct Blocks {
  int64_t rows = 0, keys = 0;  // Br, Bc
};

// FlashAttention-1, Algorithm 1, line 1: Bc = ceil(M / 4d), Br = min(Bc, d), where d is the larger of D and Dv.
[[gnu::always_inline]] static inline Blocks v1_blocks(const Problem& problem, int64_t fast_memory) {
  const int64_t d = cpu::greater(problem.head_dim, problem.value_dim);
  const int64_t keys = cpu::greater(1, cpu::ceil_div(fast_memory, 4 * d));
  return {cpu::lesser(keys, d), keys};
}

// Square blocks of the products over memory: Bc of v1, in whole register tiles of every instruction set.
[[gnu::always_inline]] static inline Blocks standard_blocks(const Problem& problem, int64_t fast_memory) {
  constexpr int64_t kWholeTiles = 48;
  const int64_t keys = cpu::round_up(v1_blocks(problem, fast_memory).keys, kWholeTiles);
  return {keys, keys};
}

}  // namespace tilewise
