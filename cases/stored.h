// Stored: a strided tensor with memory of its own. Every byte that is not an element is poison (NaN in every type), so
// that reading a gap shows in the result and writing one shows here.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/problem.h"

namespace tilewise::cases {

enum class Layout : uint8_t {
  rows_outside,   // (slot, row, head, dim), dense
  heads_outside,  // (slot, head, row, dim), dense
  gaps,           // dense but for an odd gap after each row of each head, and after each slot
  unaligned       // gaps, and the first element is one element past an aligned address
};
const char* name_of(Layout layout);

using Shape = std::array<int64_t, 4>;

class Stored {
 public:
  Stored() = default;  // absent
  // All elements poison too. Inputs end where their memory ends; `guarded` ones lie between poisoned bytes.
  Stored(Type type, Shape shape, Layout layout = Layout::rows_outside, bool guarded = false);

  explicit operator bool() const { return type_ != Type::none; }
  Type type() const { return type_; }
  const Shape& shape() const { return shape_; }
  int64_t count() const { return shape_[0] * shape_[1] * shape_[2] * shape_[3]; }

  // An axis that repeats keeps its extent and gets stride 0.
  void repeat(int axis, int64_t extent);

  double at(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const;
  void set(double value, int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0);

  Tensor tensor() const;   // as kernels see it: stride 0 where the extent is 1
  tw_tensor view() const;  // as a caller hands it over

  // f(a, b, c, d) for every element, the last axis fastest.
  template <class F>
  void each(F f) const {
    for (int64_t a = 0; a < shape_[0]; ++a)
      for (int64_t b = 0; b < shape_[1]; ++b)
        for (int64_t c = 0; c < shape_[2]; ++c)
          for (int64_t d = 0; d < shape_[3]; ++d) f(a, b, c, d);
  }

  bool gaps_are_untouched() const;
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  int64_t offset(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return a * stride_[0] + b * stride_[1] + c * stride_[2] + d * stride_[3];
  }

  Type type_ = Type::none;
  Shape shape_ = {}, stride_ = {};
  int64_t start_ = 0;  // byte of the first element
  std::vector<char> bytes_;
};

}  // namespace tilewise::cases
