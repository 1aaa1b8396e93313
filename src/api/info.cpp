#include "core/backend.h"
#include "core/device.h"
#include "core/json_writer.h"
#include "core/kernel.h"
#include "core/threads.h"
#include "cpu/runs_on.h"

namespace tilewise::api {
namespace {

// A small problem, and what may be asked of a kernel beyond it.
Problem plain_problem(const Kernel& kernel) {
  tw_attention a;
  tw_attention_grad g;
  TW_INIT(a);
  TW_INIT(g);
  a.device_type = TW_CPU;
  a.q = a.k = a.v = a.out = tw_tensor_of(nullptr, TW_F32, 2, 64, 4, 64);
  a.lse = tw_tensor_of(nullptr, TW_F32, 2, 4, 64, 1);
  g.dout = g.dq = g.dk = g.dv = a.out;
  Problem problem;
  (void)make_problem(a, kernel.pass == Pass::backward ? &g : nullptr, false, problem);
  problem.device_type = kernel.device_type;
  return problem;
}

Tensor tensor(Type type, int64_t n0, int64_t n1 = 1, int64_t n2 = 1, int64_t n3 = 1) {
  return tensor_of(tw_tensor_of(nullptr, static_cast<int32_t>(type), n0, n1, n2, n3), 4);
}

void set_types(Problem& p, Type type) {
  p.type = type;
  for (Tensor* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
    if (*t) t->type = type;
  }
}

struct Feature {
  const char* name;
  void (*ask)(Problem& p);
};
constexpr Feature kFeatures[] = {
    {"fp32", [](Problem& p) { set_types(p, Type::f32); }},
    {"fp16", [](Problem& p) { set_types(p, Type::f16); }},
    {"bf16", [](Problem& p) { set_types(p, Type::bf16); }},
    {"grouped heads", [](Problem& p) { p.heads_kv = p.k.shape[2] = p.v.shape[2] = 1; }},
    {"packed",
     [](Problem& p) { p.packed_q = p.packed_k = true, p.cu_seqlens_q = p.cu_seqlens_k = tensor(Type::i32, 3); }},
    {"causal", [](Problem& p) { p.causal = true; }},
    {"window", [](Problem& p) { p.window_left = 16; }},
    {"attention_chunk", [](Problem& p) { p.attention_chunk = 16; }},
    {"key intervals", [](Problem& p) { p.key_begin = p.key_end = tensor(Type::i32, 2, 4, 64); }},
    {"positions", [](Problem& p) { p.q_positions = p.k_positions = tensor(Type::i32, 2, 64); }},
    {"mask", [](Problem& p) { p.mask = tensor(Type::boolean, 2, 1, 64, 64); }},
    {"bias", [](Problem& p) { p.bias = tensor(Type::f32, 1, 4, 64, 64); }},
    {"softcap", [](Problem& p) { p.softcap = 30; }},
    {"alibi_slopes", [](Problem& p) { p.alibi_slopes = tensor(Type::f32, 1, 4); }},
    {"sink", [](Problem& p) { p.sink = tensor(Type::f32, 4); }},
    {"dropout", [](Problem& p) { p.dropout.threshold = 6554; }},
};
constexpr Feature kForwardFeatures[] = {
    {"fp32 out", [](Problem& p) { set_types(p, Type::bf16), p.out.type = Type::f32; }},
    {"prior", [](Problem& p) { p.prior_out = p.out, p.prior_lse = p.lse; }},
    {"batch_index_k", [](Problem& p) { p.batch_index_k = tensor(Type::i32, 2); }},
    {"TW_BATCH_INVARIANT", [](Problem& p) { p.batch_invariant = true; }},
};
constexpr Feature kBackwardFeatures[] = {
    {"dlse", [](Problem& p) { p.dlse = p.lse; }},
    {"dbias", [](Problem& p) { p.bias = p.dbias = tensor(Type::f32, 1, 4, 64, 64); }},
    {"dsink", [](Problem& p) { p.sink = p.dsink = tensor(Type::f32, 4); }},
    {"TW_GRAD_ACCUMULATE", [](Problem& p) { p.accumulate = true; }},
    {"TW_DETERMINISTIC", [](Problem& p) { p.deterministic = true; }},
};

bool serves(const Kernel& kernel, const Problem& problem) {
  Text reason;
  kernel.refuse(problem, reason);
  return reason.empty();
}

// In fp32, or in bf16 by a kernel that multiplies 16-bit types alone.
bool serves(const Kernel& kernel, const Feature& feature) {
  Problem problem = plain_problem(kernel);
  if (!serves(kernel, problem)) set_types(problem, Type::bf16);
  feature.ask(problem);
  return serves(kernel, problem);
}

// Of a kernel that cannot run here no code is asked: it may be built for instructions that are missing.
void write_features(const char* key, const Kernel& kernel, bool available, bool served, JsonWriter& json) {
  json.key(key).begin_array();
  const auto write = [&](const Feature& feature) {
    if (available && serves(kernel, feature) == served) json.string(feature.name);
  };
  for (const Feature& feature : kFeatures) write(feature);
  if (kernel.pass == Pass::forward) {
    for (const Feature& feature : kForwardFeatures) write(feature);
  } else {
    for (const Feature& feature : kBackwardFeatures) write(feature);
  }
  json.end_array();
}

const char* name_of_rank(Rank rank) {
  switch (rank) {
    case Rank::chosen:
      return "chosen";
    case Rank::fallback:
      return "fallback";
    case Rank::rung:
      return "rung";
  }
  return "unknown";
}

void write_version(JsonWriter& json) {
  Text version;
  version.format("%u.%u.%u", TW_VERSION >> 16, TW_VERSION >> 8 & 0xff, TW_VERSION & 0xff);
  json.key("version").string(version.chars);
}

void write_cpu(JsonWriter& json) {
  const Cpu& machine = this_cpu();
  json.key("cpu").begin_object();
  json.key("model").string(machine.model).key("cores").integer(available_cores());
  json.key("isa").begin_array();
  for (const cpu::InstructionSet& set : cpu::kInstructionSets) {
    Text why_not;
    if (set.isa != Isa::baseline && set.runs_on(0, why_not)) json.string(set.name);
  }
  json.end_array();
  json.key("l1_bytes")
      .integer(machine.l1_bytes)
      .key("l2_bytes")
      .integer(machine.l2_bytes)
      .key("l3_bytes")
      .integer(machine.l3_bytes);
  json.key("clock_ghz").real(machine.clock_ghz).end_object();
}

void write_kernel(const Kernel& kernel, JsonWriter& json) {
  Text why_not;
  const bool available = kernel.runs_on(0, why_not);
  json.begin_object().key("name").string(kernel.name).key("pass").string(name_of(kernel.pass));
  json.key("isa").string(kernel.isa == Isa::cuda ? "cuda" : cpu::instruction_set(kernel.isa).name);
  json.key("rank").string(name_of_rank(kernel.rank)).key("available").boolean(available);
  json.key("why_not");
  available ? json.null() : json.string(why_not.chars);
  write_features("accepts", kernel, available, true, json);
  write_features("refuses", kernel, available, false, json);
  json.end_object();
}

void write_gpu(int32_t index, const Gpu& gpu, JsonWriter& json) {
  json.begin_object().key("index").integer(index).key("name").string(gpu.name);
  json.key("compute_capability").integer(gpu.compute_capability);
  json.key("multiprocessors").integer(gpu.multiprocessors);
  json.key("shared_bytes").integer(gpu.shared_bytes).key("l2_bytes").integer(gpu.l2_bytes);
  json.key("memory_bytes").integer(gpu.memory_bytes);
  json.key("clock_ghz").real(gpu.clock_ghz).end_object();
}

void write_gpus(JsonWriter& json) {
  Text why_not;
  const Backend* backend = cuda_backend(&why_not);
  const int32_t count = backend ? backend->gpu_count(why_not) : 0;
  json.key("gpus").begin_array();
  for (int32_t index = 0; index < count; ++index) {
    Gpu gpu;
    if (backend->read_gpu(index, gpu).ok()) write_gpu(index, gpu, json);
  }
  json.end_array();
  json.key("backends").begin_array();
  json.begin_object().key("name").string("cpu").key("available").boolean(true).key("reason").null().end_object();
  json.begin_object().key("name").string("cuda").key("available").boolean(count > 0).key("reason");
  count > 0 ? json.null() : json.string(why_not.chars);
  json.end_object().end_array();
}

}  // namespace
}  // namespace tilewise::api

extern "C" size_t tw_info(char* text, size_t capacity) {
  using namespace tilewise;
  JsonWriter json(text, text ? capacity : 0);
  json.begin_object();
  api::write_version(json);
  api::write_cpu(json);
  json.key("kernels").begin_array();
  for (const int32_t device_type : {TW_CPU, TW_CUDA}) {
    for (const Kernel* kernel : kernels(device_type)) api::write_kernel(*kernel, json);
  }
  json.end_array();
  api::write_gpus(json);
  json.end_object();
  return json.length();
}
