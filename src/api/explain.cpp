#include "api/structs.h"
#include "core/fields.h"
#include "core/json_writer.h"
#include "core/plan.h"

namespace tilewise::api {
namespace {

// Where the data of every tensor is given, the answer is that of a run; otherwise that of planning.
bool has_data(const tw_attention& problem, const tw_attention_grad* grad) {
  bool all = true;
  const auto look = [&](const tw_tensor& tensor, int axes) {
    bool is_empty = tensor.dtype == TW_NONE;
    for (int axis = 0; axis < axes; ++axis) is_empty = is_empty || tensor.shape[axis] == 0;
    all = all && (is_empty || tensor.data);
  };
  for (const auto& field : kProblemFields) look(problem.*field.given, field.axes);
  if (!grad) return all;
  for (const auto& field : kGradFields) look(grad->*field.given, field.axes);
  return all;
}

Status plan_of(const tw_attention* given, const tw_attention_grad* given_grad, Problem& problem, Plan& plan) {
  tw_attention known;
  tw_attention_grad grad;
  if (Status status = take("problem", given, known); !status.ok()) return status;
  if (given_grad) {
    if (Status status = take("grad", given_grad, grad); !status.ok()) return status;
  }
  const tw_attention_grad* grad_or_null = given_grad ? &grad : nullptr;
  const bool with_data = has_data(known, grad_or_null);
  if (Status status = make_problem(known, grad_or_null, with_data, problem); !status.ok()) return status;
  if (Status status = with_data ? check_lengths(problem) : Status{}; !status.ok()) return status;
  return make_plan(problem, {}, plan);
}

void write_error(const Status& status, JsonWriter& json) {
  json.begin_object().key("error").begin_object();
  json.key("code").integer(status.code).key("name").string(tw_status_name(status.code));
  json.key("message").string(status.message.chars).end_object().end_object();
}

void write_sizing(const Plan& plan, JsonWriter& json) {
  const Sizing& sizing = plan.sizing;
  json.key("query_rows").integer(sizing.query_rows).key("keys").integer(sizing.keys);
  json.key("chunk_keys").integer(sizing.chunk_keys).key("splits").integer(sizing.splits);
  json.key("workers").integer(plan.settings.workers);
  json.key("workspace_bytes").integer(static_cast<int64_t>(sizing.workspace_bytes));
}

void write_refusals(const Plan& plan, const Problem& problem, JsonWriter& json) {
  json.key("refused").begin_array();
  for (const Kernel* kernel : kernels()) {
    if (kernel == plan.kernel || kernel->pass != problem.pass || kernel->device_type != problem.device_type) continue;
    const Text reason = refusal_of(*kernel, problem, false);
    if (reason.empty()) continue;
    json.begin_object().key("kernel").string(kernel->name).key("reason").string(reason.chars).end_object();
  }
  json.end_array();
}

}  // namespace
}  // namespace tilewise::api

extern "C" size_t tw_attention_explain(const tw_attention* given, const tw_attention_grad* grad, char* text,
                                       size_t capacity) {
  using namespace tilewise;
  JsonWriter json(text, text ? capacity : 0);
  Problem problem;
  Plan plan;
  if (const Status status = api::plan_of(given, grad, problem, plan); !status.ok()) {
    api::write_error(status, json);
    return json.length();
  }
  json.begin_object().key("kernel").string(plan.kernel->name).key("pass").string(name_of(problem.pass));
  api::write_sizing(plan, json);
  api::write_refusals(plan, problem, json);
  json.end_object();
  return json.length();
}
