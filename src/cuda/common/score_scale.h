// What makes probabilities of scores: P = 2^(score * log2 - reference).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "core/inline.h"
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

// What q.k is multiplied by before tanh, under a softcap. Finite, so that 0 stays 0.
TILEWISE_INLINE float scale_before_tanh(float softmax_scale, float softcap) {
  return fminf(fmaxf(softmax_scale / softcap, -FLT_MAX), FLT_MAX);
}

}  // namespace tilewise::cuda
