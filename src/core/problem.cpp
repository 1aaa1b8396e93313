#include "core/problem.h"

#include <algorithm>
#include <cmath>

#include "core/fields.h"
#include "core/rules.h"

namespace tilewise {
namespace {

void take_tensors(const tw_attention& given, const tw_attention_grad* grad, Problem& problem) {
  for (const auto& field : kProblemFields) problem.*field.tensor = tensor_of(given.*field.given, field.axes);
  if (!grad) return;
  for (const auto& field : kGradFields) problem.*field.tensor = tensor_of(grad->*field.given, field.axes);
}

int64_t longest(int64_t slot, int64_t max_seqlen) { return max_seqlen > 0 ? std::min(slot, max_seqlen) : slot; }

void take_sizes(const tw_attention& given, Problem& problem) {
  problem.type = problem.q.type;
  problem.packed_q = static_cast<bool>(problem.cu_seqlens_q);
  problem.packed_k = static_cast<bool>(problem.cu_seqlens_k);
  problem.batch = problem.packed_q ? problem.cu_seqlens_q.shape[0] - 1 : problem.q.shape[0];
  problem.heads = problem.q.shape[2];
  problem.heads_kv = problem.k.shape[2];
  problem.head_dim = problem.q.shape[3];
  problem.value_dim = problem.v.shape[3];
  problem.total_rows = problem.q.shape[0] * problem.q.shape[1];
  problem.total_keys = problem.k.shape[0] * problem.k.shape[1];
  problem.max_rows = longest(problem.q.shape[1], given.max_seqlen_q);
  problem.max_keys = longest(problem.k.shape[1], given.max_seqlen_k);
}

void take_scores_and_masks(const tw_attention& given, Problem& problem) {
  const bool has_scale = given.flags & TW_SOFTMAX_SCALE;
  problem.softmax_scale =
      has_scale ? given.softmax_scale : static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  problem.softcap = given.softcap;
  problem.causal = given.flags & TW_CAUSAL;
  problem.top_left = given.flags & TW_TOP_LEFT;
  problem.mask_tail = given.flags & TW_MASK_TAIL;
  if (given.flags & TW_WINDOW_LEFT) problem.window_left = given.window_left;
  if (given.flags & TW_WINDOW_RIGHT) problem.window_right = given.window_right;
  problem.attention_chunk = given.attention_chunk;
}

void take_settings(const tw_attention& given, const tw_attention_grad* grad, Problem& problem) {
  problem.device_type = given.device_type;
  problem.device_index = given.device_index;
  problem.pass = grad ? Pass::backward : Pass::forward;
  problem.accumulate = grad && (grad->flags & TW_GRAD_ACCUMULATE);
  problem.threads = given.threads;
  problem.sm_margin = given.sm_margin;
  problem.num_splits = given.num_splits;
  problem.deterministic = given.flags & TW_DETERMINISTIC;
  problem.batch_invariant = given.flags & TW_BATCH_INVARIANT;
}

// Rows and keys beyond bias and mask have no entry there: lengths may not reach them.
void bound_lengths_by_pairs(Problem& problem) {
  for (const Tensor* pairs : {&problem.bias, &problem.mask}) {
    if (!*pairs) continue;
    const bool covers_tail_only = pairs == &problem.mask && problem.mask_tail;
    if (pairs->shape[2] != 1) problem.max_rows = std::min(problem.max_rows, pairs->shape[2]);
    if (pairs->shape[3] != 1 && !covers_tail_only) problem.max_keys = std::min(problem.max_keys, pairs->shape[3]);
  }
}

// The CPU's short cut: the host may read dropout_state, once it is there.
uint64_t dropout_key(const Problem& problem, bool with_data) {
  uint64_t seed = problem.dropout.seed, offset = problem.dropout.offset;
  if (problem.dropout_state && problem.device_type == TW_CPU && with_data) {
    const auto* state = reinterpret_cast<const int64_t*>(problem.dropout_state.data);
    seed = static_cast<uint64_t>(state[0]);
    offset += static_cast<uint64_t>(state[problem.dropout_state.stride[0]]);
  }
  return seed + offset * 0x9E3779B97F4A7C15u;
}

void take_dropout(const tw_attention& given, bool with_data, Problem& problem) {
  Dropout& dropout = problem.dropout;
  dropout.threshold = static_cast<uint32_t>(std::lround(static_cast<double>(given.dropout_p) * 65536));
  dropout.keep_scale = dropout.threshold < 65536 ? 65536.0f / static_cast<float>(65536 - dropout.threshold) : 0;
  dropout.seed = given.dropout_seed;
  dropout.offset = given.dropout_offset;
  dropout.key = dropout_key(problem, with_data);
}

}  // namespace

Tensor tensor_of(const tw_tensor& given, int axes) {
  Tensor tensor;
  if (given.dtype == TW_NONE) return tensor;
  tensor.data = static_cast<char*>(given.data);
  tensor.type = static_cast<Type>(given.dtype);
  for (int axis = 0; axis < 4; ++axis) {
    tensor.shape[axis] = axis < axes ? given.shape[axis] : 1;
    tensor.stride[axis] = tensor.shape[axis] == 1 ? 0 : given.stride[axis];
  }
  return tensor;
}

int64_t size_of(Type type) {
  switch (type) {
    case Type::none:
      return 0;
    case Type::f8:
    case Type::i8:
    case Type::i4:
    case Type::boolean:
      return 1;
    case Type::f16:
    case Type::bf16:
      return 2;
    case Type::f32:
    case Type::i32:
      return 4;
    case Type::i64:
    case Type::f64:
      return 8;
  }
  return 0;
}

const char* name_of(Type type) {
  switch (type) {
    case Type::none:
      return "none";
    case Type::f32:
      return "fp32";
    case Type::f16:
      return "fp16";
    case Type::bf16:
      return "bf16";
    case Type::f8:
      return "fp8";
    case Type::i8:
      return "int8";
    case Type::i4:
      return "int4";
    case Type::boolean:
      return "bool";
    case Type::i32:
      return "int32";
    case Type::i64:
      return "int64";
    case Type::f64:
      return "fp64";
  }
  return "unknown";
}

const char* name_of(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

Status make_problem(const tw_attention& given, const tw_attention_grad* grad, bool with_data, Problem& problem) {
  problem = Problem{};
  Rules rules;
  check_values(given, grad, rules);
  check_tensors(given, grad, rules);
  if (!rules.kept()) return rules.first_broken();
  take_settings(given, grad, problem);
  take_tensors(given, grad, problem);
  take_sizes(given, problem);
  take_scores_and_masks(given, problem);
  check_types(problem, rules);
  if (rules.kept()) check_shapes(given, problem, rules);
  if (rules.kept()) check_overlaps(problem, rules);
  if (with_data && rules.kept()) check_memory(problem, rules);
  if (!rules.kept()) return rules.first_broken();
  bound_lengths_by_pairs(problem);
  take_dropout(given, with_data, problem);
  return {};
}

}  // namespace tilewise
