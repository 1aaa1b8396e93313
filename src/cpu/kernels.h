// The rows that the CPU back end adds to the kernel table.
#pragma once

#include "core/kernel.h"

namespace tilewise::cpu {

extern const Kernel reference_forward, reference_backward;

namespace portable {
extern const Kernel tiled_forward, tiled_backward, standard_forward, standard_backward, v1_forward, v1_backward;
}

namespace avx2 {
extern const Kernel tiled_forward, tiled_backward, standard_forward, standard_backward, v1_forward, v1_backward;
}

namespace avx512 {
extern const Kernel tiled_forward, tiled_backward, standard_forward, standard_backward, v1_forward, v1_backward;
}

namespace neon {
extern const Kernel tiled_forward, tiled_backward, standard_forward, standard_backward, v1_forward, v1_backward;
}

namespace sve128 {
extern const Kernel tiled_forward, tiled_backward;
}

namespace sve256 {
extern const Kernel tiled_forward, tiled_backward;
}

namespace sve512 {
extern const Kernel tiled_forward, tiled_backward;
}

}  // namespace tilewise::cpu
