#include "cli/features.h"

#include <fmt/format.h>

#include <optional>

#include "cli/shape.h"

namespace tilewise::cli {
namespace {

constexpr int64_t kBatch = 2, kLength = 64, kHeads = 4, kHeadDim = 64;

tw_tensor absent_data(int32_t dtype, int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
  return tw_tensor_of(nullptr, dtype, a, b, c, d);
}

Shape plain_shape(Pass pass) {
  Shape shape;
  shape.pass = pass;
  shape.batch = kBatch, shape.seqlen_q = shape.seqlen_k = kLength;
  shape.heads = shape.kv_heads = kHeads, shape.head_dim = shape.head_dim_v = kHeadDim;
  return shape;
}

template <typename Change>
void with_shape(Described& d, Change change) {
  Shape shape = plain_shape(d.backward ? Pass::backward : Pass::forward);
  change(shape);
  d = describe(shape, {});
}

void pack(Described& d) {
  with_shape(d, [](Shape& s) { s.batch = 1; });
  d.attention.cu_seqlens_q = d.attention.cu_seqlens_k = absent_data(TW_I32, kBatch + 1);
}

struct Feature {
  const char* name;
  void (*ask)(Described& problem);  // changes a plain problem, without data, so that it needs the feature
  std::optional<Pass> only = {};
};

constexpr Feature kFeatures[] = {
    {"fp16", [](Described& d) { with_shape(d, [](Shape& s) { s.dtype = Type::f16; }); }},
    {"bf16", [](Described& d) { with_shape(d, [](Shape& s) { s.dtype = Type::bf16; }); }},
    {"head_dim 1", [](Described& d) { with_shape(d, [](Shape& s) { s.head_dim = s.head_dim_v = 1; }); }},
    {"head_dim 512", [](Described& d) { with_shape(d, [](Shape& s) { s.head_dim = s.head_dim_v = 512; }); }},
    {"head_dim_v", [](Described& d) { with_shape(d, [](Shape& s) { s.head_dim_v = 40; }); }},
    {"grouped heads", [](Described& d) { with_shape(d, [](Shape& s) { s.kv_heads = 1; }); }},
    {"packed sequences", pack},
    {"seqused", [](Described& d) { d.attention.seqused_q = d.attention.seqused_k = absent_data(TW_I32, kBatch); }},
    {"leftpad_k", [](Described& d) { d.attention.leftpad_k = absent_data(TW_I32, kBatch); }},
    {"batch_index_k", [](Described& d) { d.attention.batch_index_k = absent_data(TW_I32, kBatch); }, Pass::forward},
    {"causal", [](Described& d) { d.attention.flags |= TW_CAUSAL; }},
    {"top-left", [](Described& d) { d.attention.flags |= TW_CAUSAL | TW_TOP_LEFT; }},
    {"window", [](Described& d) { d.attention.flags |= TW_WINDOW_LEFT, d.attention.window_left = 16; }},
    {"chunk", [](Described& d) { d.attention.attention_chunk = 16; }},
    {"key intervals",
     [](Described& d) { d.attention.key_begin = d.attention.key_end = absent_data(TW_I32, kBatch, kHeads, kLength); }},
    {"positions",
     [](Described& d) { d.attention.q_positions = d.attention.k_positions = absent_data(TW_I32, kBatch, kLength); }},
    {"mask", [](Described& d) { d.attention.mask = absent_data(TW_BOOL, kBatch, 1, kLength, kLength); }},
    {"bias", [](Described& d) { d.attention.bias = absent_data(TW_F32, 1, kHeads, kLength, kLength); }},
    {"softcap", [](Described& d) { d.attention.softcap = 30; }},
    {"ALiBi", [](Described& d) { d.attention.alibi_slopes = absent_data(TW_F32, 1, kHeads); }},
    {"sink", [](Described& d) { d.attention.sink = absent_data(TW_F32, kHeads); }},
    {"dropout", [](Described& d) { d.attention.dropout_p = 0.1f; }},
    {"prior", [](Described& d) { d.attention.prior_out = d.attention.out, d.attention.prior_lse = d.attention.lse; },
     Pass::forward},
    {"batch invariance", [](Described& d) { d.attention.flags |= TW_BATCH_INVARIANT; }, Pass::forward},
    {"determinism", [](Described& d) { d.attention.flags |= TW_DETERMINISTIC; }, Pass::backward},
    {"dlse", [](Described& d) { d.grad.dlse = d.attention.lse; }, Pass::backward},
    {"dbias", [](Described& d) { d.attention.bias = d.grad.dbias = absent_data(TW_F32, 1, kHeads, kLength, kLength); },
     Pass::backward},
    {"dsink", [](Described& d) { d.attention.sink = d.grad.dsink = absent_data(TW_F32, kHeads); }, Pass::backward},
    {"accumulation", [](Described& d) { d.grad.flags |= TW_GRAD_ACCUMULATE; }, Pass::backward},
};

bool belongs_to(const Feature& feature, Pass pass) { return !feature.only || *feature.only == pass; }

}  // namespace

std::string refused_features(const Kernel& kernel) {
  std::string refused;
  for (const Feature& feature : kFeatures) {
    if (!belongs_to(feature, kernel.pass)) continue;
    Described described = describe(plain_shape(kernel.pass), {});
    feature.ask(described);
    Text reason;
    kernel.refuse(planned_problem(described), reason);
    if (!reason.empty()) refused += fmt::format("{}{}", refused.empty() ? "" : ", ", feature.name);
  }
  return refused;
}

}  // namespace tilewise::cli
