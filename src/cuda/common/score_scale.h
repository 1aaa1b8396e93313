// What makes probabilities of scores: P = 2^(score * log2 - reference).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cuda/common/logarithms.h"

namespace tilewise::cuda {

struct ScoreScale {
  float log2 = 0;     // scale * log2(e); never 0, since a dead score must stay dead
  float quick = 0;    // the same if positive, else +inf: "look closely every time"
  float dead = 0;     // the score of a dead key: dead * log2 = -inf
  float natural = 0;  // |scale|, for LSE
};

inline ScoreScale score_scale_of(float scale) {
  ScoreScale made;
  made.log2 = std::clamp(scale * kLog2e, -FLT_MAX, FLT_MAX);
  if (made.log2 == 0) made.log2 = FLT_TRUE_MIN;
  made.quick = made.log2 > 0 ? made.log2 : INFINITY;
  made.dead = made.log2 > 0 ? -INFINITY : INFINITY;
  made.natural = std::fabs(scale);
  return made;
}

}  // namespace tilewise::cuda
