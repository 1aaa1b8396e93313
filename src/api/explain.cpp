#include "api/structs.h"
#include "core/fields.h"
#include "core/json_writer.h"
#include "core/plan.h"
#include "traffic/roofline.h"

namespace tilewise::api {
namespace {

// f(tensor, axes) for each tensor of the call.
template <class F>
void each_given(tw_attention& problem, tw_attention_grad* grad, F f) {
  for (const auto& field : kProblemFields) f(problem.*field.given, field.axes);
  if (!grad) return;
  for (const auto& field : kGradFields) f(grad->*field.given, field.axes);
}

bool has_data(tw_attention& problem, tw_attention_grad* grad) {
  bool all = true;
  each_given(problem, grad, [&](const tw_tensor& tensor, int axes) {
    bool is_empty = tensor.dtype == TW_NONE;
    for (int axis = 0; axis < axes; ++axis) is_empty = is_empty || tensor.shape[axis] == 0;
    all = all && (is_empty || tensor.data);
  });
  return all;
}

// Where the data of every tensor is given, the answer is that of a run; otherwise no memory is looked at.
Status plan_of(const tw_attention* given, const tw_attention_grad* given_grad, Problem& problem, Plan& plan) {
  tw_attention known;
  tw_attention_grad grad;
  if (Status status = take("problem", given, known); !status.ok()) return status;
  if (given_grad) {
    if (Status status = take("grad", given_grad, grad); !status.ok()) return status;
  }
  tw_attention_grad* grad_or_null = given_grad ? &grad : nullptr;
  const bool with_data = has_data(known, grad_or_null);
  if (!with_data) each_given(known, grad_or_null, [](tw_tensor& tensor, int) { tensor.data = nullptr; });
  if (Status status = make_problem(known, grad_or_null, with_data, problem); !status.ok()) return status;
  const bool reads_lengths = with_data && problem.device_type == TW_CPU;
  if (Status status = reads_lengths ? check_lengths(problem) : Status{}; !status.ok()) return status;
  return choose_plan(problem, {}, plan);
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

void write_traffic(const Plan& plan, const Problem& problem, JsonWriter& json) {
  const std::optional<Traffic> traffic = traffic_of(plan, problem);
  if (!traffic) {
    json.key("flops").null().key("bytes").null().key("roofline_ms").null();
    return;
  }
  json.key("flops").integer(traffic->flops).key("bytes").integer(traffic->bytes_read + traffic->bytes_written);
  json.key("roofline_ms").real(1e3 * roofline_seconds(plan, problem, *traffic));
}

// The kernels before the chosen one, which are better. One that would serve was passed over for one asked for by name.
void write_refusals(const Plan& plan, const Problem& problem, JsonWriter& json) {
  json.key("refused").begin_array();
  for (const Kernel* kernel : kernels(problem.device_type)) {
    if (kernel == plan.kernel) break;
    if (kernel->pass != problem.pass) continue;
    Text reason = refusal_of(*kernel, problem, false);
    if (reason.empty()) reason.format("TILEWISE_FORCE_KERNEL asks for another");
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
  api::write_traffic(plan, problem, json);
  api::write_refusals(plan, problem, json);
  json.end_object();
  return json.length();
}
