#include "core/fields.h"
#include "core/rules.h"

namespace tilewise {
namespace {

void need(const char* name, const Tensor& tensor, const char* why, Rules& rules) {
  rules.require(static_cast<bool>(tensor), "%s is absent (its dtype is 0): %s", name, why);
}

void same(const char* name, const Tensor& tensor, const char* other_name, const Tensor& other, Rules& rules) {
  rules.require(!tensor || tensor.type == other.type, "%s.dtype is %s but %s.dtype is %s: they must be the same", name,
                name_of(tensor.type), other_name, name_of(other.type));
}

void same_or_fp32(const char* name, const Tensor& tensor, const char* other_name, const Tensor& other, Rules& rules) {
  rules.require(!tensor || tensor.type == other.type || tensor.type == Type::f32,
                "%s.dtype is %s but %s.dtype is %s: must be that, or fp32", name, name_of(tensor.type), other_name,
                name_of(other.type));
}

void check_gradient_types(const Problem& problem, Rules& rules) {
  same("dout", problem.dout, "out", problem.out, rules);
  same_or_fp32("dq", problem.dq, "q", problem.q, rules);
  same_or_fp32("dk", problem.dk, "k", problem.k, rules);
  same_or_fp32("dv", problem.dv, "v", problem.v, rules);
  same_or_fp32("dbias", problem.dbias, "bias", problem.bias, rules);
  if (!problem.accumulate) return;
  for (const auto& field : kGradFields) {
    const Tensor& tensor = problem.*field.tensor;
    const bool adds = &tensor == &problem.dq || &tensor == &problem.dk || &tensor == &problem.dv;
    rules.require(!adds || !tensor || tensor.type == Type::f32,
                  "%s.dtype is %s: accumulate (C: TW_GRAD_ACCUMULATE) needs fp32", field.name, name_of(tensor.type));
  }
}

}  // namespace

void check_types(const Problem& problem, Rules& rules) {
  need("q", problem.q, "every call needs it", rules);
  need("k", problem.k, "every call needs it", rules);
  need("v", problem.v, "every call needs it", rules);
  need("out", problem.out, problem.pass == Pass::forward ? "every call needs it" : "backward reads it", rules);
  same("k", problem.k, "q", problem.q, rules);
  same("v", problem.v, "q", problem.q, rules);
  same_or_fp32("out", problem.out, "q", problem.q, rules);
  if (problem.pass == Pass::forward) return;
  need("lse", problem.lse, "backward reads it", rules);
  need("dout", problem.dout, "backward reads it", rules);
  check_gradient_types(problem, rules);
}

}  // namespace tilewise
