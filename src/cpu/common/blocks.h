// Block sizes from the size of the fast memory, and what `standard` keeps at once: for the kernels that follow them and
// for the model that predicts their traffic. The same for every instruction set.
#pragma once

#include "core/numbers.h"
#include "core/problem.h"

namespace tilewise::cpu {

struct Blocks {
  int64_t rows = 0, keys = 0;  // Br, Bc
};

inline constexpr int64_t kWholeTiles = 96;  // a multiple of the register tiles' rows and columns everywhere

// FlashAttention-1, Algorithm 1, line 1: Bc = ceil(M / 4d), Br = min(Bc, d), where d is the larger of D and Dv.
[[gnu::always_inline]] static inline Blocks v1_blocks(const Problem& problem, int64_t fast_memory) {
  const int64_t d = greater(problem.head_dim, problem.value_dim);
  const int64_t keys = greater(1, ceil_div(fast_memory, 4 * d));
  return {lesser(keys, d), keys};
}

// Square blocks of the products over memory: Bc of v1 in whole tiles.
[[gnu::always_inline]] static inline Blocks standard_blocks(const Problem& problem, int64_t fast_memory) {
  const int64_t keys = round_up(v1_blocks(problem, fast_memory).keys, kWholeTiles);
  return {keys, keys};
}

// ---- The memory of standard attention: squares of rows x keys for each head at work. They are large, so as many heads
// are at work at once as fit into kBytesAtOnce: at least one, and whole groups of heads if more than one of a group.

struct StandardMemory {
  int64_t rows, row;          // of a square: rows, and floats from row to row
  int64_t dk_sums, dv_sums;   // floats
  int64_t head_bytes, heads;  // of a head; heads at work at once
  int64_t bytes;              // never less for a larger problem, though `heads` may be
};

inline constexpr int64_t kBytesAtOnce = int64_t{64} << 20, kHeadBytes = 512;

[[gnu::always_inline]] static inline StandardMemory standard_memory(const Problem& problem) {
  const bool backward = problem.pass == Pass::backward;
  const int64_t keys = round_up(greater(1, problem.max_keys), kWholeTiles);
  const int64_t line = 16;  // floats; an odd number of cache lines a row uses all cache sets
  StandardMemory memory;
  memory.rows = round_up(greater(1, problem.max_rows), kWholeTiles);
  memory.row = (keys / line | 1) * line;
  memory.dk_sums = problem.dk ? keys * round_up(problem.head_dim, line) : 0;
  memory.dv_sums = problem.dv ? keys * round_up(problem.value_dim, line) : 0;
  const int64_t squares = backward && problem.softcap > 0 ? 3 : 2;
  const int64_t floats = memory.rows * (squares * memory.row + 2) + memory.dk_sums + memory.dv_sums;
  memory.head_bytes = kHeadBytes + floats * 4;
  const int64_t all = problem.batch * problem.heads, group = problem.group();
  const int64_t most = greater(memory.head_bytes, kBytesAtOnce);
  memory.bytes = all <= most / memory.head_bytes ? all * memory.head_bytes : most;  // all heads' bytes may pass 64 bits
  memory.heads = memory.bytes / memory.head_bytes;
  memory.heads = memory.heads >= group ? round_down(memory.heads, group) : 1;
  return memory;
}

}  // namespace tilewise::cpu
