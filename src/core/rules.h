// The rules that arguments must keep, by subject. make_problem and make_merge call them.
#pragma once

#include <initializer_list>

#include "core/fields.h"
#include "core/pattern.h"

namespace tilewise {

// Remembers the first rule that was broken; later ones are not looked at. A rule that is kept costs a test and no call.
class Rules {
 public:
  bool kept() const { return first_broken_.ok(); }
  const Status& first_broken() const { return first_broken_; }

  // Broken: TW_INVALID_ARGUMENT. The message names the argument, its value and the rule.
  template <class... Values>
  void require(bool kept_now, std::type_identity_t<Pattern<Values...>> pattern, Values... values) {
    if (!kept_now) [[unlikely]]
      broken(TW_INVALID_ARGUMENT, pattern.text(), values...);
  }
  // Broken: TW_UNSUPPORTED, what is legal but not served by any kernel of this build.
  template <class... Values>
  void serve(bool served, std::type_identity_t<Pattern<Values...>> pattern, Values... values) {
    if (!served) [[unlikely]]
      broken(TW_UNSUPPORTED, pattern.text(), values...);
  }

 private:
  [[gnu::cold]] void broken(tw_status code, const char* pattern, ...);

  Status first_broken_;
};

// ---- A whole problem.

// Flags, numbers and reserved fields, and which of them go together (rules_values.cpp).
void check_values(const tw_attention& given, const tw_attention_grad* grad, Rules& rules);
// Each tensor by itself (rules_tensors.cpp).
void check_tensors(const tw_attention& given, const tw_attention_grad* grad, Rules& rules);
// How tensors fit together: presence and types, extents (rules_types.cpp, rules_shapes.cpp).
void check_types(const Problem& problem, Rules& rules);
void check_shapes(const tw_attention& given, const Problem& problem, Rules& rules);
// Elements of one output lie apart (rules_memory.cpp). After the shapes: a wrong one often looks like an overlap.
void check_overlaps(const Problem& problem, Rules& rules);
// Data pointers: there, aligned, outputs apart from everything else (rules_memory.cpp).
void check_memory(const Problem& problem, Rules& rules);

// ---- Its parts.

void check_device(int32_t device_type, int32_t device_index, int32_t threads, Rules& rules);

// Type, extents and strides of a tensor that may be absent.
struct TensorRule {
  int axes;
  uint32_t types;
  LastAxis last;
};
void check_tensor(const char* name, const tw_tensor& tensor, const TensorRule& rule, Rules& rules);

// What an axis must measure, and where that number comes from.
struct Extent {
  int64_t size;
  const char* source;
  bool may_repeat = false;  // extent 1: the same for all
};
void check_extents(const char* name, const Tensor& tensor, std::initializer_list<Extent> extents, Rules& rules);

// Each stride is longer than all that the axes of shorter strides reach. The tensor has passed check_tensor.
void check_elements_apart(const char* name, const Tensor& tensor, Rules& rules);
void check_pointer(const char* name, const Tensor& tensor, Rules& rules);
// True only if they surely share an element. Interleaved views, as of one (q, k, v) buffer, are nobody's fault.
bool share_memory(const Tensor& a, const Tensor& b);
// The same for any of `count` tensors that lie `stride` elements apart.
struct Parts {
  int64_t stride = 0, count = 1;
};
bool share_memory(const Tensor& tensor, const Tensor& first, Parts parts);

// The workspace, where data is there.
void check_workspace_apart(const Problem& problem, void* workspace, uint64_t bytes, Rules& rules);

}  // namespace tilewise
