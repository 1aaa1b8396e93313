#include "cpu/simd/sve.h"
#include "simd_ops_of.h"

namespace tilewise::cpu {

SimdOps sve256_ops() { return ops_of<sve256::Simd>("sve256", 1.6e-7, 2e-8); }

}  // namespace tilewise::cpu
