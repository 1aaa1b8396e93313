#include "cpu/simd/sve.h"
#include "simd_ops_of.h"

namespace tilewise::cpu {

SimdOps sve512_ops() { return ops_of<sve512::Simd>("sve512", 1.6e-7, 2e-8); }

}  // namespace tilewise::cpu
