// One pass over units of work by all workers.
#pragma once

#include "core/threads.h"
#include "cpu/common/workspace.h"

namespace tilewise::cpu {

// step(worker, unit) once for each 0 <= unit < count. Units that write nothing in common give the same bits at any
// number of workers. Simd keeps the instruction sets' copies apart.
template <class Simd, class Step>
void each_unit(const Parallel& parallel, int64_t workers, int64_t count, Step step) {
  struct Pass {
    Step& step;
    UnitCounter units;
  } pass{step, {0, count}};
  const auto work = [](void* context, int64_t worker) {
    auto& [step, units] = *static_cast<Pass*>(context);
    for (int64_t unit; units.draw(unit);) step(worker, unit);
  };
  parallel(workers, work, &pass);
}

}  // namespace tilewise::cpu
