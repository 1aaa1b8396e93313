// The demo's attention on a GPU: the generations side by side.
#pragma once

#include <functional>

#include "cli/demo_data.h"
#include "cli/table.h"

namespace tilewise::cli {

// Adds rows of measured_table(): standard, v1 and v2 on the data in bf16, at lengths that grow fourfold up to
// `most_tokens`; the error is that of a few rows. A kernel that refuses the data, or whose memory does not fit, has no
// row. `step` is told what is at work.
void demo_on_gpu(const DemoData& data, int64_t most_tokens, Table& table,
                 const std::function<void(int64_t tokens, const char* kernel)>& step);

}  // namespace tilewise::cli
