#include "cases/stored.h"

#include <algorithm>
#include <cstring>

#include "cpu/common/element_values.h"

namespace tilewise::cases {
namespace {

constexpr char kPoison = '\xff';
constexpr int64_t kGuardBytes = 192;
constexpr int64_t kGap = 3;

// The axes from the outermost to the innermost.
std::array<int, 4> order_of(Layout layout) {
  return layout == Layout::heads_outside ? std::array{0, 2, 1, 3} : std::array{0, 1, 2, 3};
}

bool is_whole(Type type) { return type == Type::i32 || type == Type::boolean; }

}  // namespace

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::rows_outside:
      return "bshd";
    case Layout::heads_outside:
      return "bhsd";
    case Layout::gaps:
      return "gaps";
    case Layout::unaligned:
      return "unaligned";
  }
  return "";
}

Stored::Stored(Type type, Shape shape, Layout layout, bool guarded) : type_(type), shape_(shape) {
  const int64_t gap = layout == Layout::gaps || layout == Layout::unaligned ? kGap : 0;
  int64_t step = 1, last = 0;
  const auto order = order_of(layout);
  for (int at = 3; at >= 0; --at) {
    const int axis = order[at];
    stride_[axis] = step;
    last += std::max<int64_t>(shape[axis] - 1, 0) * step;
    step = step * std::max<int64_t>(shape[axis], 1) + (at == 3 || at == 1 ? gap : 0);
  }
  const int64_t elements = count() > 0 ? last + 1 : 0;
  start_ = (guarded ? kGuardBytes : 0) + (layout == Layout::unaligned ? size_of(type) : 0);
  bytes_.assign(start_ + elements * size_of(type) + (guarded ? kGuardBytes : 0), kPoison);
}

void Stored::repeat(int axis, int64_t extent) {
  shape_[axis] = extent;
  stride_[axis] = 0;
}

Tensor Stored::tensor() const {
  Tensor t;
  t.data = const_cast<char*>(bytes_.data()) + start_;
  t.type = type_;
  for (int axis = 0; axis < 4; ++axis) {
    t.shape[axis] = shape_[axis];
    t.stride[axis] = shape_[axis] == 1 ? 0 : stride_[axis];
  }
  return t;
}

tw_tensor Stored::view() const {
  tw_tensor view;
  std::memset(&view, 0, sizeof view);
  if (!*this) return view;
  view.data = const_cast<char*>(bytes_.data()) + start_;
  view.dtype = static_cast<int32_t>(type_);
  std::copy(shape_.begin(), shape_.end(), view.shape);
  std::copy(stride_.begin(), stride_.end(), view.stride);
  return view;
}

double Stored::at(int64_t a, int64_t b, int64_t c, int64_t d) const {
  const char* element = bytes_.data() + start_ + offset(a, b, c, d) * size_of(type_);
  if (type_ == Type::boolean) return *element;
  if (is_whole(type_)) {
    int32_t x;
    std::memcpy(&x, element, sizeof x);
    return x;
  }
  return cpu::read_value<double>(tensor(), offset(a, b, c, d));
}

void Stored::set(double value, int64_t a, int64_t b, int64_t c, int64_t d) {
  char* element = bytes_.data() + start_ + offset(a, b, c, d) * size_of(type_);
  if (type_ == Type::boolean) {
    *element = static_cast<char>(value);
  } else if (is_whole(type_)) {
    const int32_t x = static_cast<int32_t>(value);
    std::memcpy(element, &x, sizeof x);
  } else {
    cpu::write_values(tensor(), offset(a, b, c, d), 1, &value);
  }
}

bool Stored::gaps_are_untouched() const {
  std::vector<char> is_element(bytes_.size());
  each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t begin = start_ + offset(a, b, c, d) * size_of(type_);
    std::fill_n(is_element.begin() + begin, size_of(type_), 1);
  });
  for (size_t i = 0; i < bytes_.size(); ++i)
    if (!is_element[i] && bytes_[i] != kPoison) return false;
  return true;
}

}  // namespace tilewise::cases
