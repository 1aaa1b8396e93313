// tw_attention_merge on a GPU: out, lse = merge of parts over disjoint keys.
#pragma once

#include "core/merge.h"

namespace tilewise::cuda {

Status merge(const Merge& merge, void* stream);

}  // namespace tilewise::cuda
