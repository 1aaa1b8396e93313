#include "cpu/runs_on.h"

#include "core/device.h"

namespace tilewise::cpu {

bool runs_anywhere(int32_t, Text&) { return true; }

bool needs_avx2(int32_t, Text& why_not) {
  if (!this_cpu().avx2) why_not.format("this CPU has no AVX2 with FMA and F16C");
  return this_cpu().avx2;
}

}  // namespace tilewise::cpu
