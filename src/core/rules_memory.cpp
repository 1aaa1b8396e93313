#include <algorithm>

#include "core/rules.h"

namespace tilewise {
namespace {

bool is_empty(const Tensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + 4, [](int64_t extent) { return extent == 0; });
}

// The bytes between the lowest and the highest element, and whether there are no others between them.
struct Footprint {
  uintptr_t begin, end;
  bool gapless;

  explicit Footprint(const Tensor& tensor) {
    const int64_t size = size_of(tensor.type);
    int64_t low = 0, high = 0, elements = 1;
    for (int axis = 0; axis < 4; ++axis) {
      const int64_t reach = tensor.stride[axis] * (tensor.shape[axis] - 1);
      (reach < 0 ? low : high) += reach;
      elements *= tensor.stride[axis] == 0 ? 1 : tensor.shape[axis];
    }
    const auto data = reinterpret_cast<uintptr_t>(tensor.data);
    begin = data + static_cast<uintptr_t>(low * size);
    end = data + static_cast<uintptr_t>((high + 1) * size);
    gapless = elements == high - low + 1;
  }

  bool meets(uintptr_t byte) const { return byte >= begin && byte < end; }
};

bool same_view(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.type == b.type && std::equal(a.stride, a.stride + 4, b.stride);
}

// The header allows these two to be one tensor.
bool is_update(const Problem& problem, const Tensor& output, const Tensor& other) {
  if (&output == &problem.out && &other == &problem.prior_out) return same_view(output, other);
  if (&output == &problem.lse && &other == &problem.prior_lse) return same_view(output, other);
  return false;
}

void check_output(const Problem& problem, const char* name, const Tensor& output, Rules& rules) {
  each_tensor(problem, [&](const char* other_name, const Tensor& other, Role) {
    if (&other == &output || is_update(problem, output, other)) return;
    rules.require(!share_memory(output, other), "%s shares memory with %s: an output must lie apart", name, other_name);
  });
}

}  // namespace

void check_pointer(const char* name, const Tensor& tensor, Rules& rules) {
  const int64_t size = size_of(tensor.type);
  rules.require(tensor.data || is_empty(tensor), "%s.data is NULL but %s has elements", name, name);
  rules.require(reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uint64_t>(size) == 0,
                "%s.data is %p: must be aligned to its elements of %lld bytes", name, static_cast<void*>(tensor.data),
                ll(size));
}

bool share_memory(const Tensor& a, const Tensor& b) {
  if (is_empty(a) || is_empty(b)) return false;
  if (a.data == b.data) return true;
  const Footprint fa(a), fb(b);
  return (fa.gapless && (fa.meets(fb.begin) || fa.meets(fb.end - 1))) ||
         (fb.gapless && (fb.meets(fa.begin) || fb.meets(fa.end - 1)));
}

void check_memory(const Problem& problem, Rules& rules) {
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role) { check_pointer(name, tensor, rules); });
  if (!rules.kept()) return;
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role role) {
    if (is_written(role, problem.pass)) check_output(problem, name, tensor, rules);
  });
}

}  // namespace tilewise
