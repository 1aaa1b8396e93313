#include <algorithm>
#include <cstdlib>

#include "core/rules.h"

namespace tilewise {
namespace {

bool is_empty(const Tensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + 4, [](int64_t extent) { return extent == 0; });
}

// The axis, not yet done and longer than 1, of the shortest stride; -1 if none is left.
int shortest_stride(const Tensor& tensor, uint32_t done) {
  int found = -1;
  for (int axis = 0; axis < 4; ++axis) {
    if (tensor.shape[axis] == 1 || (done >> axis & 1)) continue;
    if (found < 0 || std::abs(tensor.stride[axis]) < std::abs(tensor.stride[found])) found = axis;
  }
  return found;
}

// The bytes between the lowest and the highest element of equal tensors at a stride.
class Footprint {
 public:
  explicit Footprint(const Tensor& tensor, Parts parts = {}) : axes_{{parts.stride, parts.count}} {
    for (int axis = 0; axis < 4; ++axis) axes_[axis + 1] = {tensor.stride[axis], tensor.shape[axis]};
    int64_t low = 0, high = 0;
    for (const auto& [stride, extent] : axes_) (stride < 0 ? low : high) += stride * (extent - 1);
    const auto data = reinterpret_cast<uintptr_t>(tensor.data);
    begin_ = data + static_cast<uintptr_t>(low * size_of(tensor.type));
    end_ = data + static_cast<uintptr_t>((high + 1) * size_of(tensor.type));
  }

  bool shares_with(const Footprint& other) const {
    if (begin_ >= other.end_ || other.begin_ >= end_) return false;
    return ((meets(other.begin_) || meets(other.end_ - 1)) && is_gapless()) ||
           ((other.meets(begin_) || other.meets(end_ - 1)) && other.is_gapless());
  }

 private:
  struct Axis {
    int64_t stride, extent;
  };

  bool meets(uintptr_t byte) const { return byte >= begin_ && byte < end_; }

  // Whether there are surely no other bytes between the elements.
  bool is_gapless() const {
    Axis axes[5];
    std::copy(axes_, axes_ + 5, axes);
    std::sort(axes, axes + 5, [](Axis a, Axis b) { return std::abs(a.stride) < std::abs(b.stride); });
    int64_t reach = 0;
    for (const auto& [stride, extent] : axes) {
      if (extent == 1) continue;
      if (std::abs(stride) > reach + 1) return false;
      reach += std::abs(stride) * (extent - 1);
    }
    return true;
  }

  Axis axes_[5];
  uintptr_t begin_, end_;
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

void check_elements_apart(const char* name, const Tensor& tensor, Rules& rules) {
  if (is_empty(tensor)) return;
  int64_t reach = 0;  // of the axes so far; fits, since check_reach has passed
  uint32_t done = 0;
  for (int next; (next = shortest_stride(tensor, done)) >= 0; done |= 1u << next) {
    const int64_t stride = std::abs(tensor.stride[next]);
    rules.require(stride > reach,
                  "%s.stride[%d] is %lld: elements of an output must not overlap, but shorter strides reach %lld", name,
                  next, ll(tensor.stride[next]), ll(reach));
    if (!rules.kept()) return;
    reach += stride * (tensor.shape[next] - 1);
  }
}

void check_overlaps(const Problem& problem, Rules& rules) {
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role role) {
    if (is_written(role, problem.pass)) check_elements_apart(name, tensor, rules);
  });
}

void check_pointer(const char* name, const Tensor& tensor, Rules& rules) {
  const int64_t size = size_of(tensor.type);
  rules.require(tensor.data || is_empty(tensor), "%s.data is NULL but %s has elements", name, name);
  rules.require(reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uint64_t>(size) == 0,
                "%s.data is %p: must be aligned to its elements of %lld bytes", name, static_cast<void*>(tensor.data),
                ll(size));
}

bool share_memory(const Tensor& a, const Tensor& b) {
  if (is_empty(a) || is_empty(b)) return false;
  return a.data == b.data || Footprint(a).shares_with(Footprint(b));
}

bool share_memory(const Tensor& tensor, const Tensor& first, Parts parts) {
  if (is_empty(tensor) || is_empty(first) || parts.count == 0) return false;
  if (Footprint(tensor).shares_with(Footprint(first, parts))) return true;
  Tensor part = first;
  for (int64_t n = 0; n < parts.count; ++n, part.data += parts.stride * size_of(first.type)) {
    if (share_memory(tensor, part)) return true;
    if (parts.stride == 0) break;
  }
  return false;
}

void check_workspace_apart(const Problem& problem, void* workspace, uint64_t bytes, Rules& rules) {
  Tensor room;
  room.data = static_cast<char*>(workspace), room.type = Type::boolean;
  room.shape[0] = static_cast<int64_t>(bytes), room.stride[0] = 1;
  room.shape[1] = room.shape[2] = room.shape[3] = 1;
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role) {
    rules.require(!share_memory(tensor, room), "exec.workspace shares memory with %s: it must lie apart", name);
  });
}

void check_memory(const Problem& problem, Rules& rules) {
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role) { check_pointer(name, tensor, rules); });
  if (!rules.kept()) return;
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role role) {
    if (is_written(role, problem.pass)) check_output(problem, name, tensor, rules);
  });
}

}  // namespace tilewise
