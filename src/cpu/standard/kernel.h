// The kernel table's functions of standard attention.
#pragma once

#include "core/kernel.h"
#include "cpu/standard/backward.h"
#include "cpu/standard/forward.h"

namespace tilewise::cpu::standard {

// Squares whose bytes can be counted; the allocator judges those that it cannot give.
inline constexpr int64_t kMostPairs = int64_t{1} << 56;

template <class Simd>
void refuse(const Problem& problem, Text& reason) {
  if (problem.type == Type::f64) {
    reason.format("fp64 is for the reference kernel");
  } else if (problem.max_rows > 0 && problem.max_keys > kMostPairs / problem.max_rows) {
    reason.format("scores of %lld x %lld cannot be held in memory", static_cast<long long>(problem.max_rows),
                  static_cast<long long>(problem.max_keys));
  }
}

template <class Simd, template <class> class Call>
Sizing size(const Problem& problem, const Settings& settings) {
  const Blocks blocks = standard_blocks(problem, settings.fast_memory);
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

}  // namespace tilewise::cpu::standard
