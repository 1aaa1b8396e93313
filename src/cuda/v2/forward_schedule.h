// Numbers of a forward that follow from the problem and the tile, the same for all thread blocks.
#pragma once

#include "core/problem.h"
#include "cuda/common/score_scale.h"

namespace tilewise::cuda::v2 {

// Divides by a number that the host knows: a multiplication and a shift. For dividends from 0 to 2^31 - 1.
struct Divisor {
  int value = 1;
  uint32_t factor = uint32_t{1} << 31;  // 2^(31 + shift) / value, rounded up
  int shift = 0;                        // log2 of value, rounded up

#ifdef __CUDACC__
  __device__ __forceinline__ int quotient(int x) const {
    return static_cast<int>(__umulhi(2 * static_cast<uint32_t>(x), factor) >> shift);
  }
#endif
};

Divisor divisor_of(int64_t value);  // 1 if it is less

struct ForwardSchedule {
  int tiles = 0;                 // blocks of rows of all heads of all sequences
  Divisor row_blocks;            // of one head
  int run = 1;                   // tiles in a row that a thread block takes: causal streams pair a long and a short one
  int section = 0;               // heads whose keys and values fit the L2 cache together
  int all_heads = 0;             // of all sequences
  Divisor heads;                 // of a sequence
  Divisor group;                 // of them that share a kv head
  int rows = 0, keys = 0;        // of a sequence; the last keys are not counted if no row sees them
  int diagonal = 0;              // causal: row i sees keys up to i + diagonal
  bool finishes_scores = false;  // scores have terms beyond their scale: they come finished, in natural units
  bool plain_scores = true;      // they have neither terms nor `mask`
  bool fetches = false;          // what `bias` or `mask` has for them
  bool scores_in_turns = false;  // terms and `mask` pair by pair: not all of them come in pieces
  uint8_t bias_piece = 0;        // bytes of `bias` that are copied together
  uint8_t mask_piece = 0;        // of `mask`
  float scale_before_tanh = 0;   // under a softcap
  ScoreScale scale;              // what is left to do
};

ForwardSchedule schedule_of(const Problem& problem, int rows_of_tile);

// Whether all that it counts in 32 bits fits, with tiles of at least so many rows; otherwise says why not.
bool fits_schedule(const Problem& problem, int rows_of_tile, Text& why_not);

}  // namespace tilewise::cuda::v2
