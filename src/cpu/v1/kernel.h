// The kernel table's functions of FlashAttention-1. docs/rungs.md tells what it refuses and why.
#pragma once

#include "core/kernel.h"
#include "cpu/v1/backward.h"
#include "cpu/v1/forward.h"

namespace tilewise::cpu::v1 {

// Several pairs add to one element of the bias.
[[gnu::always_inline]] static inline bool repeats(const Tensor& bias, const Problem& problem) {
  const int64_t whole[4] = {problem.batch, problem.heads, problem.max_rows, problem.max_keys};
  for (int axis = 0; axis < 4; ++axis)
    if (bias.shape[axis] == 1 && whole[axis] > 1) return true;
  return false;
}

template <class Simd>
void refuse(const Problem& problem, Text& reason) {
  if (problem.type == Type::f64) {
    reason.format("fp64 is for the reference kernel");
  } else if (problem.dbias && problem.dbias.type != Type::f32 && repeats(problem.dbias, problem)) {
    reason.format("dbias of a repeated bias must be fp32: it is summed in place");
  }
}

template <class Simd, template <class> class Call>
Sizing size(const Problem& problem, const Settings& settings) {
  const Blocks blocks = v1_blocks(problem, settings.fast_memory);
  Sizing sizing;
  sizing.query_rows = blocks.rows;
  sizing.keys = blocks.keys;
  sizing.workspace_bytes = static_cast<uint64_t>(Call<Simd>(problem, settings, nullptr).workspace_bytes());
  return sizing;
}

template <class Simd, template <class> class Call>
Status launch(const Problem& problem, const Settings& settings, const Launch& launch) {
  Call<Simd>(problem, settings, launch.workspace).run(launch.parallel);
  return {};
}

}  // namespace tilewise::cpu::v1
