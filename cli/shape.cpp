#include "cli/shape.h"

#include <charconv>

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

tw_tensor lse_view(const Shape& shape) {
  return view_of("lse", nullptr, Type::f32, Layout::bshd, shape.batch, shape.heads, shape.seqlen_q, 1);
}

constexpr int64_t kMostHeadDim = 512;  // of the library

void check_head_dim(const char* option, int64_t head_dim) {
  if (head_dim > kMostHeadDim) fail(ExitCode::unsupported, "{} {} is more than {}", option, head_dim, kMostHeadDim);
}

ExitCode exit_code_of(tw_status status) {
  switch (status) {
    case TW_INVALID_ARGUMENT:
      return ExitCode::usage;
    case TW_UNSUPPORTED:
    case TW_DEVICE_ERROR:
      return ExitCode::unsupported;
    case TW_OUT_OF_MEMORY:
      return ExitCode::out_of_memory;
    default:
      return ExitCode::internal;
  }
}

}  // namespace

Device device_named(const std::string& name) {
  constexpr std::string_view kCuda = "cuda";
  if (name == "cpu") return {};
  Device gpu{TW_CUDA, 0};
  if (name == kCuda) return gpu;
  if (name.starts_with("cuda:")) {
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kCuda.size() + 1, end, gpu.index);
    if (stop == end && error == std::errc() && gpu.index >= 0) return gpu;
  }
  fail(ExitCode::usage, "--device: {} is none of cpu, cuda and cuda:N", in_quotes(name));
}

Pass pass_named(const std::string& name) { return name == "backward" ? Pass::backward : Pass::forward; }

Type type_named(const std::string& name) {
  if (name == "fp16") return Type::f16;
  if (name == "bf16") return Type::bf16;
  return Type::f32;
}

Layout layout_named(const std::string& name) { return name == "bhsd" ? Layout::bhsd : Layout::bshd; }

const char* name_of(Layout layout) { return layout == Layout::bhsd ? "bhsd" : "bshd"; }

std::vector<Column> size_columns() {
  using enum Column::Place;
  return {{"batch", "batch", caption, as_count},           {"heads", "heads", caption, as_count},
          {"kv_heads", "kv_heads", caption, as_count},     {"seqlen_q", "seqlen_q", caption, as_count},
          {"seqlen_k", "seqlen_k", caption, as_count},     {"head_dim", "head_dim", caption, as_count},
          {"head_dim_v", "head_dim_v", caption, as_count}, {"causal", "causal", caption}};
}

Shape shape_of(const Problem& p) {
  Shape shape;
  shape.batch = p.batch, shape.heads = p.heads, shape.kv_heads = p.heads_kv;
  shape.seqlen_q = p.q.shape[1], shape.seqlen_k = p.k.shape[1];
  shape.head_dim = p.head_dim, shape.head_dim_v = p.value_dim;
  return shape;
}

std::vector<Cell> size_cells(const Shape& s, bool causal) {
  return {s.batch, s.heads, s.kv_heads, s.seqlen_q, s.seqlen_k, s.head_dim, s.head_dim_v, causal};
}

Shape ShapeOptions::shape() const {
  Shape shape;
  shape.pass = pass_named(pass);
  shape.dtype = type_named(dtype);
  shape.layout = layout_named(layout);
  shape.batch = batch, shape.heads = heads, shape.kv_heads = kv_heads.value_or(heads);
  shape.seqlen_q = seqlen_q.value_or(seqlen.value_or(shape.seqlen_q));
  shape.seqlen_k = seqlen_k.value_or(seqlen.value_or(shape.seqlen_k));
  shape.head_dim = head_dim, shape.head_dim_v = head_dim_v.value_or(head_dim);
  shape.threads = threads;
  shape.device = device_named(device);
  return shape;
}

void declare(Arguments& arguments, ShapeOptions& options) {
  arguments.group("Problem");
  arguments.choice("--pass", options.pass, {"forward", "backward"}, "pass");
  arguments.choice("--dtype", options.dtype, {"fp32", "fp16", "bf16"}, "type of q, k, v, out");
  arguments.choice("--layout", options.layout, {"bshd", "bhsd"}, "order of the axes in memory");
  arguments.integer("--batch", options.batch, kLength, "sequences");
  arguments.integer("--heads", options.heads, kExtent, "query heads");
  arguments.integer("--kv-heads", options.kv_heads, kExtent, "key/value heads [as --heads]");
  arguments.integer("--seqlen", options.seqlen, kLength, "query and key length [2048]");
  arguments.integer("--seqlen-q", options.seqlen_q, kLength, "query length [as --seqlen]");
  arguments.integer("--seqlen-k", options.seqlen_k, kLength, "key length [as --seqlen]");
  arguments.integer("--head-dim", options.head_dim, kExtent, "head size of q and k");
  arguments.integer("--head-dim-v", options.head_dim_v, kExtent, "head size of v and out [as --head-dim]");
  arguments.integer("--threads", options.threads, {0, kMostThreads}, "threads, 0 = all cores");
  arguments.text("--device", options.device, "DEVICE", kDeviceHelp);
}

void declare(Arguments& arguments, ScoreOptions& options) {
  arguments.group("Scores and masks");
  arguments.flag("--causal", options.causal, "a row sees keys up to its own position");
  arguments.flag("--top-left", options.top_left, "row i stands at position i, not i + seqlen_k - seqlen_q");
  arguments.integer("--window-left", options.window_left, kLength, "a row sees N keys before its position");
  arguments.integer("--window-right", options.window_right, kLength, "a row sees N keys after its position");
  arguments.integer("--chunk", options.attention_chunk, kExtent, "a row sees keys of its own chunk of N only");
  arguments.number("--scale", options.softmax_scale, "softmax scale [1/sqrt(head_dim)]");
  arguments.number("--softcap", options.softcap, "scores become X * tanh(score / X)");
  arguments.number("--dropout", options.dropout, "probability that a pair is dropped");
  arguments.bits("--dropout-seed", options.dropout_seed, "seed of dropout [0]");
  arguments.bits("--dropout-offset", options.dropout_offset, "offset of dropout [0]");
}

tw_tensor view_of(const char* name, void* data, Type type, Layout layout, int64_t b, int64_t s, int64_t h, int64_t d) {
  int64_t bytes = size_of(type);
  for (const int64_t extent : {b, s, h, d}) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      fail(ExitCode::usage, "{}: ({}, {}, {}, {}) overflows 64 bits", name, b, s, h, d);
    }
  }
  const auto dtype = static_cast<int32_t>(type);
  return layout == Layout::bshd ? tw_tensor_of(data, dtype, b, s, h, d)
                                : tw_tensor_swap(tw_tensor_of(data, dtype, b, h, s, d), 1, 2);
}

int64_t bytes_of(const tw_tensor& t) {
  return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3] * size_of(static_cast<Type>(t.dtype));
}

void check_options(const Shape& s) {
  if (s.heads % s.kv_heads != 0) {
    fail(ExitCode::usage, "--heads {} is not a multiple of --kv-heads {}", s.heads, s.kv_heads);
  }
  check_head_dim("--head-dim", s.head_dim);
  check_head_dim("--head-dim-v", s.head_dim_v);
}

void apply(const ScoreOptions& scores, tw_attention& attention) {
  const auto set = [&](bool given, int32_t flag) {
    if (given) attention.flags |= static_cast<uint32_t>(flag);
  };
  set(scores.causal, TW_CAUSAL);
  set(scores.top_left, TW_TOP_LEFT);
  set(scores.window_left.has_value(), TW_WINDOW_LEFT);
  set(scores.window_right.has_value(), TW_WINDOW_RIGHT);
  set(scores.softmax_scale.has_value(), TW_SOFTMAX_SCALE);
  attention.window_left = scores.window_left.value_or(0);
  attention.window_right = scores.window_right.value_or(0);
  attention.attention_chunk = scores.attention_chunk.value_or(0);
  attention.softmax_scale = static_cast<float>(scores.softmax_scale.value_or(0));
  attention.softcap = static_cast<float>(scores.softcap.value_or(0));
  attention.dropout_p = static_cast<float>(scores.dropout.value_or(0));
  attention.dropout_seed = scores.dropout_seed.value_or(0);
  attention.dropout_offset = scores.dropout_offset.value_or(0);
}

Described describe(const Shape& s, const ScoreOptions& scores) {
  Described d;
  d.backward = s.pass == Pass::backward;
  const auto tensor = [&](const char* name, int64_t length, int64_t heads, int64_t dim) {
    return view_of(name, nullptr, s.dtype, s.layout, s.batch, length, heads, dim);
  };
  tw_attention& a = d.attention;
  TW_INIT(a);
  a.device_type = s.device.type, a.device_index = s.device.index;
  a.threads = static_cast<int32_t>(s.threads);
  a.q = tensor("q", s.seqlen_q, s.heads, s.head_dim);
  a.k = tensor("k", s.seqlen_k, s.kv_heads, s.head_dim);
  a.v = tensor("v", s.seqlen_k, s.kv_heads, s.head_dim_v);
  a.out = tensor("out", s.seqlen_q, s.heads, s.head_dim_v);
  a.lse = lse_view(s);
  apply(scores, a);
  TW_INIT(d.grad);
  if (d.backward) d.grad.dout = a.out, d.grad.dq = a.q, d.grad.dk = a.k, d.grad.dv = a.v;
  return d;
}

void check(const Status& status) {
  if (!status.ok()) throw Failure(exit_code_of(status.code), status.message.chars);
}

Problem planned_problem(const Described& described) {
  Problem problem;
  check(make_problem(described.attention, described.grad_or_null(), false, problem));
  return problem;
}

}  // namespace tilewise::cli
