// Traits with the lanes and tiles of AVX-512 in vectors that any machine has.
#pragma once

#include "cpu/simd/portable.h"

namespace tilewise::cpu::portable {

using SixteenLanes = SimdOf<16, 8>;

}  // namespace tilewise::cpu::portable
