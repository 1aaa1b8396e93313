#include <algorithm>
#include <cstdlib>

#include "core/rules.h"

namespace tilewise {
namespace {

constexpr int32_t kLastType = TW_I64;
constexpr uint32_t kUnserved = type_bit(TW_F8E4M3) | type_bit(TW_I8) | type_bit(TW_I4);

// Far above any memory, far below where sizes that kernels compute from it overflow.
constexpr int64_t kMostElements = int64_t{1} << 48;

// "fp32, fp16 or bf16"
Text list_of(uint32_t types) {
  Text text;
  for (int32_t dtype = TW_NONE; dtype <= kLastType; ++dtype) {
    if (!(types & type_bit(dtype))) continue;
    const bool last = types >> dtype == 1;
    text.append("%s%s", text.empty() ? "" : (last ? " or " : ", "), name_of(static_cast<Type>(dtype)));
  }
  return text;
}

void check_type(const char* name, const tw_tensor& tensor, uint32_t types, Rules& rules) {
  const int32_t dtype = tensor.dtype;
  rules.require(dtype > TW_NONE && dtype <= kLastType, "%s.dtype is %d: no such type", name, dtype);
  if (!rules.kept()) return;
  const char* const given = name_of(static_cast<Type>(dtype));
  if (!(types & type_bit(dtype))) {  // the list takes longer to write than all the rules to check
    rules.require(false, "%s.dtype is %s: must be %s%s", name, given, list_of(types & ~kUnserved).chars,
                  types == kBool ? "; what is added to the scores is bias" : "");
  }
  rules.serve(!(type_bit(dtype) & kUnserved), "%s.dtype is %s: no kernel of this build serves it", name, given);
}

bool is_empty(const tw_tensor& tensor, int axes) {
  return std::any_of(tensor.shape, tensor.shape + axes, [](int64_t extent) { return extent == 0; });
}

void check_counts(const char* name, const tw_tensor& tensor, int axes, Rules& rules) {
  int64_t elements = 1;
  bool fits = true;
  for (int axis = 0; axis < axes; ++axis) {
    const int64_t extent = tensor.shape[axis], counted = std::max<int64_t>(extent, 1);
    rules.require(extent >= 0, "%s.shape[%d] is %lld: must not be negative", name, axis, ll(extent));
    fits = fits && !__builtin_mul_overflow(elements, counted, &elements) && elements <= kMostElements;
    rules.require(fits, "%s.shape[%d] is %lld: makes more than 2^48 elements", name, axis, ll(extent));
  }
}

// The bytes between any two elements fit int64.
void check_reach(const char* name, const tw_tensor& tensor, int axes, Rules& rules) {
  int64_t span = 1;
  for (int axis = 0; axis < axes && rules.kept(); ++axis) {
    if (tensor.shape[axis] == 1) continue;
    const int64_t stride = tensor.stride[axis];
    int64_t reach, bytes;
    bool fits = stride != INT64_MIN && !__builtin_mul_overflow(std::abs(stride), tensor.shape[axis] - 1, &reach);
    fits = fits && !__builtin_add_overflow(span, reach, &span);
    fits = fits && !__builtin_mul_overflow(span, size_of(static_cast<Type>(tensor.dtype)), &bytes);
    rules.require(fits, "%s.stride[%d] is %lld with shape[%d] = %lld: offsets in bytes must fit 64 bits", name, axis,
                  ll(stride), axis, ll(tensor.shape[axis]));
  }
}

}  // namespace

void check_tensor(const char* name, const tw_tensor& tensor, const TensorRule& rule, Rules& rules) {
  rules.require(tensor.reserved == 0, "%s.reserved is %d: must be 0", name, tensor.reserved);
  if (tensor.dtype == TW_NONE || !rules.kept()) return;
  check_type(name, tensor, rule.types, rules);
  check_counts(name, tensor, rule.axes, rules);
  if (!rules.kept() || is_empty(tensor, rule.axes)) return;
  check_reach(name, tensor, rule.axes, rules);
  const int last = rule.axes - 1;
  rules.require(rule.last == LastAxis::any || tensor.shape[last] == 1 || tensor.stride[last] == 1,
                "%s.stride[%d] is %lld: the last axis must have stride 1", name, last, ll(tensor.stride[last]));
}

void check_tensors(const tw_attention& given, const tw_attention_grad* grad, Rules& rules) {
  const auto check = [&](const auto& field, const auto& from) {
    check_tensor(field.name, from.*field.given, {field.axes, field.types, field.last}, rules);
  };
  for (const auto& field : kProblemFields) check(field, given);
  if (!grad) return;
  for (const auto& field : kGradFields) check(field, *grad);
}

}  // namespace tilewise
