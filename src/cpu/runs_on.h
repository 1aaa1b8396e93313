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

consteval auto runs_on(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return needs_avx512;
    case Isa::avx2:
      return needs_avx2;
    case Isa::neon:
      return needs_neon;
    case Isa::sve128:
      return needs_sve128;
    case Isa::sve256:
      return needs_sve256;
    case Isa::sve512:
      return needs_sve512;
    case Isa::baseline:
      return runs_anywhere;
  }
}

}  // namespace tilewise::cpu
