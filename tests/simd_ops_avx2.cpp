#include "cpu/simd/avx2.h"
#include "simd_ops_of.h"

namespace tilewise::cpu {

SimdOps avx2_ops() { return ops_of<avx2::Simd>("avx2", 1.6e-7, 2e-8); }

}  // namespace tilewise::cpu
