#include "cpu/simd/neon.h"
#include "simd_ops_of.h"

namespace tilewise::cpu {

SimdOps neon_ops() { return ops_of<neon::Simd>("neon", 1.6e-7, 2e-8); }

}  // namespace tilewise::cpu
