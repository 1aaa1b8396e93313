#include "cpu/simd/portable.h"
#include "simd_ops_of.h"

namespace tilewise::cpu {

SimdOps portable_ops() { return ops_of<portable::Simd>("portable", 1.8e-7, 8e-8); }

}  // namespace tilewise::cpu
