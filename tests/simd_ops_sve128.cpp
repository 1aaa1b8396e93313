#include "cpu/simd/sve.h"
#include "simd_ops_of.h"

namespace tilewise::cpu {

SimdOps sve128_ops() { return ops_of<sve128::Simd>("sve128", 1.6e-7, 2e-8); }

}  // namespace tilewise::cpu
