#include "core/merge.h"

#include <cstdlib>

#include "core/rules.h"

namespace tilewise {
namespace {

void check_parts(const tw_merge& given, const Merge& merge, Rules& rules) {
  rules.require(given.parts >= 0, "parts is %lld: must not be negative", ll(given.parts));
  const struct {
    const char* name;
    int64_t stride;
    const Tensor& first;
  } strides[] = {{"out_part_stride", given.out_part_stride, merge.out_parts},
                 {"lse_part_stride", given.lse_part_stride, merge.lse_parts}};
  for (const auto& [name, stride, first] : strides) {
    int64_t span = 1;  // of one part; fits, since check_tensor has passed
    for (int axis = 0; axis < 4; ++axis) span += std::abs(first.stride[axis]) * (first.shape[axis] - 1);
    int64_t reach, bytes;
    const bool fits = stride != INT64_MIN && !__builtin_mul_overflow(std::abs(stride), given.parts, &reach) &&
                      !__builtin_add_overflow(reach, span, &reach) &&
                      !__builtin_mul_overflow(reach, size_of(Type::f32), &bytes);
    rules.require(fits, "%s is %lld with parts = %lld: offsets in bytes must fit 64 bits", name, ll(stride),
                  ll(given.parts));
  }
}

void check_fit(const Merge& merge, Rules& rules) {
  const Tensor& out = merge.out;
  const Extent slots{out.shape[0], "out.shape[0]"}, rows{out.shape[1], "out.shape[1]"};
  const Extent heads{out.shape[2], "out.shape[2]"}, dim{out.shape[3], "out.shape[3]"};
  check_extents("out_parts", merge.out_parts, {slots, rows, heads, dim}, rules);
  check_extents("lse_parts", merge.lse_parts, {slots, heads, rows}, rules);
  check_extents("lse", merge.lse, {slots, heads, rows}, rules);
}

void check_apart(const Merge& merge, Rules& rules) {
  check_pointer("out", merge.out, rules);
  if (merge.lse) check_pointer("lse", merge.lse, rules);
  if (merge.parts > 0) check_pointer("out_parts", merge.out_parts, rules);
  if (merge.parts > 0) check_pointer("lse_parts", merge.lse_parts, rules);
  if (!rules.kept() || merge.parts == 0) return;
  const Parts outs{merge.out_part_stride, merge.parts}, lses{merge.lse_part_stride, merge.parts};
  rules.require(!share_memory(merge.out, merge.out_parts, outs),
                "out shares memory with out_parts: an output must lie apart");
  rules.require(!share_memory(merge.out, merge.lse_parts, lses),
                "out shares memory with lse_parts: an output must lie apart");
  if (!merge.lse) return;
  rules.require(!share_memory(merge.lse, merge.out_parts, outs),
                "lse shares memory with out_parts: an output must lie apart");
  rules.require(!share_memory(merge.lse, merge.lse_parts, lses),
                "lse shares memory with lse_parts: an output must lie apart");
  rules.require(!share_memory(merge.lse, merge.out), "lse shares memory with out: an output must lie apart");
}

}  // namespace

Status make_merge(const tw_merge& given, Merge& merge) {
  Rules rules;
  check_device(given.device_type, given.device_index, given.threads, rules);
  check_tensor("out_parts", given.out_parts, {4, kFp32, LastAxis::contiguous}, rules);
  check_tensor("lse_parts", given.lse_parts, {3, kFp32, LastAxis::any}, rules);
  check_tensor("out", given.out, {4, kFloats, LastAxis::contiguous}, rules);
  check_tensor("lse", given.lse, {3, kFp32, LastAxis::any}, rules);
  rules.require(given.out_parts.dtype != TW_NONE, "out_parts is absent (its dtype is 0)");
  rules.require(given.lse_parts.dtype != TW_NONE, "lse_parts is absent (its dtype is 0)");
  rules.require(given.out.dtype != TW_NONE, "out is absent (its dtype is 0)");
  if (!rules.kept()) return rules.first_broken();
  merge = {given.threads,
           given.parts,
           given.out_part_stride,
           given.lse_part_stride,
           tensor_of(given.out_parts, 4),
           tensor_of(given.out, 4),
           tensor_of(given.lse_parts, 3),
           tensor_of(given.lse, 3)};
  check_fit(merge, rules);
  if (rules.kept()) check_elements_apart("out", merge.out, rules);
  if (rules.kept() && merge.lse) check_elements_apart("lse", merge.lse, rules);
  if (rules.kept()) check_parts(given, merge, rules);
  if (rules.kept()) check_apart(merge, rules);
  return rules.first_broken();
}

}  // namespace tilewise
