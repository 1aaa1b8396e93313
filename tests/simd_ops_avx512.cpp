#include "cpu/simd/avx512.h"
#include "simd_ops_of.h"
#include "sixteen_lanes.h"

namespace tilewise::cpu {

// What stands for AVX-512 where it is missing.
using Stand = portable::SixteenLanes;
static_assert(Stand::kLanes == avx512::Simd::kLanes);
static_assert(Stand::kTileRows == avx512::Simd::kTileRows && Stand::kTileCols == avx512::Simd::kTileCols);
static_assert(Stand::kStripRows == avx512::Simd::kStripRows && Stand::kStripCols == avx512::Simd::kStripCols);

SimdOps avx512_ops() { return ops_of<avx512::Simd>("avx512", 1.6e-7, 2e-8); }

}  // namespace tilewise::cpu
