// Numbers of a forward that follow from the problem and the tile, the same for all thread blocks.
#pragma once

#include "core/problem.h"
#include "cuda/common/score_scale.h"

namespace tilewise::cuda::v2 {

struct ForwardSchedule {
  int tiles = 0;                 // blocks of rows of all heads of all sequences
  int row_blocks = 0;            // of one head
  int section = 0;               // heads whose keys and values fit the L2 cache together
  int all_heads = 0;             // of all sequences
  int heads = 0;                 // of a sequence
  int group = 0;                 // of them that share a kv head
  int rows = 0, keys = 0;        // of a sequence; the last keys are not counted if no row sees them
  int diagonal = 0;              // causal: row i sees keys up to i + diagonal
  bool finishes_scores = false;  // scores have terms beyond their scale: they come finished, in natural units
  ScoreScale scale;              // what is left to do
};

ForwardSchedule schedule_of(const Problem& problem, int rows_of_tile);

// Whether all that it counts in 32 bits fits, with tiles of at least so many rows; otherwise says why not.
bool fits_schedule(const Problem& problem, int rows_of_tile, Text& why_not);

}  // namespace tilewise::cuda::v2
