#include "cli/tensors.h"

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

bool batched(const Array& array) { return array.shape.size() == 4; }

}  // namespace

tw_tensor sequence_view(const std::string& name, const Array& array, Layout layout) {
  if (array.shape.size() != 3 && array.shape.size() != 4) {
    fail(ExitCode::bad_input, "{}: shape {} has {} axes; {} are needed, batch may be left out", name,
         shape_text(array.shape), array.shape.size(),
         layout == Layout::bshd ? "batch, seqlen, heads, head_dim" : "batch, heads, seqlen, head_dim");
  }
  const tw_tensor given = trailing_view(name, array, 4);
  return layout == Layout::bshd ? given : tw_tensor_swap(given, 1, 2);
}

tw_tensor trailing_view(const std::string& name, const Array& array, int axes) {
  const size_t given = array.shape.size();
  if (given == 0 || given > static_cast<size_t>(axes)) {
    fail(ExitCode::bad_input, "{}: shape {} has {} axes; 1 to {} are possible", name, shape_text(array.shape), given,
         axes);
  }
  int64_t extent[4] = {1, 1, 1, 1};
  for (size_t i = 0; i < given; ++i) extent[static_cast<size_t>(axes) - given + i] = array.shape[i];
  return tw_tensor_of(array.bytes.data(), static_cast<int32_t>(array.dtype), extent[0], extent[1], extent[2],
                      extent[3]);
}

Array result_like(const char* name, const Array& like, Type dtype, int64_t head_dim) {
  std::vector<int64_t> shape = like.shape;
  shape.back() = head_dim;
  return Array::of(dtype, std::move(shape), name);
}

Array lse_for(const Array& q, const tw_tensor& view) {
  std::vector<int64_t> shape = {view.shape[2], view.shape[1]};
  if (batched(q)) shape.insert(shape.begin(), view.shape[0]);
  return Array::of(Type::f32, std::move(shape), "lse");
}

}  // namespace tilewise::cli
