// Whether this machine has what a CPU kernel was built for. Baseline code: asked before any other instruction runs.
#pragma once

#include <cstdint>

#include "core/kernel.h"

namespace tilewise::cpu {

bool runs_anywhere(int32_t device_index, Text& why_not);
bool needs_avx2(int32_t device_index, Text& why_not);
bool needs_avx512(int32_t device_index, Text& why_not);
bool needs_neon(int32_t device_index, Text& why_not);
bool needs_sve128(int32_t device_index, Text& why_not);
bool needs_sve256(int32_t device_index, Text& why_not);
bool needs_sve512(int32_t device_index, Text& why_not);

struct InstructionSet {
  Isa isa;
  const char* name;  // as kernels have it in theirs
  bool (*runs_on)(int32_t device_index, Text& why_not);
};
inline constexpr InstructionSet kInstructionSets[] = {
    {Isa::baseline, "portable", runs_anywhere}, {Isa::avx2, "avx2", needs_avx2},
    {Isa::avx512, "avx512", needs_avx512},      {Isa::neon, "neon", needs_neon},
    {Isa::sve128, "sve128", needs_sve128},      {Isa::sve256, "sve256", needs_sve256},
    {Isa::sve512, "sve512", needs_sve512},
};

constexpr const InstructionSet& instruction_set(Isa isa) {
  const InstructionSet* set = kInstructionSets;
  while (set->isa != isa) ++set;
  return *set;
}

}  // namespace tilewise::cpu
