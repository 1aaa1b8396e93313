#include "simd_ops_of.h"
#include "sixteen_lanes.h"

namespace tilewise::cpu {

SimdOps portable_ops() { return ops_of<portable::Simd>("portable", 1.8e-7, 8e-8); }
SimdOps sixteen_lanes_ops() { return ops_of<portable::SixteenLanes>("sixteen_lanes", 1.8e-7, 8e-8); }

}  // namespace tilewise::cpu
