// Merges results on the CPU. No row of the kernel table: it has one form, which needs no plan.
#pragma once

#include "core/merge.h"
#include "core/threads.h"

namespace tilewise::cpu {

void merge(const Merge& merge, const Parallel& parallel);

}  // namespace tilewise::cpu
