#include "cpu/simd/avx512.h"
#include "simd_ops_of.h"

namespace tilewise::cpu {

SimdOps avx512_ops() { return ops_of<avx512::Simd>("avx512", 1.6e-7, 2e-8); }

}  // namespace tilewise::cpu
