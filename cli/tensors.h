// Tensors of `tilewise run`: arrays from files as the library's views, and arrays for its results.
#pragma once

#include <string>

#include "cli/files/array.h"
#include "cli/shape.h"

namespace tilewise::cli {

// (batch, seqlen, heads, head_dim) in `layout`, or the same without batch. `name` is for messages.
tw_tensor sequence_view(const std::string& name, const Array& array, Layout layout);
// (.., a, b, c, d) with missing leading axes taken as 1.
tw_tensor trailing_view(const std::string& name, const Array& array, int axes);

// Zeroed, with the layout and the number of axes that `like` has.
Array result_like(const char* name, const Array& like, Type dtype, int64_t head_dim);
// lse (batch, heads, seqlen) of queries `q`.
Array lse_for(const Array& q, const tw_tensor& view);

}  // namespace tilewise::cli
