// The sizes and score options of a problem as the commands take them, and the C struct that they make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/table.h"
#include "core/problem.h"

namespace tilewise::cli {

enum class Layout { bshd, bhsd };  // order of batch, seqlen, heads, head_dim in memory

// Where a problem is computed.
struct Device {
  int32_t type = TW_CPU, index = 0;

  bool is_gpu() const { return type == TW_CUDA; }
};
// "cpu", "cuda" or "cuda:N"; throws Failure(usage), naming --device.
Device device_named(const std::string& name);

struct Shape {
  Pass pass = Pass::forward;
  Type dtype = Type::f32;
  Layout layout = Layout::bshd;
  int64_t batch = 1, heads = 4, kv_heads = 4;
  int64_t seqlen_q = 2048, seqlen_k = 2048;
  int64_t head_dim = 64, head_dim_v = 64;
  int64_t threads = 0;  // 0 = all cores
  Device device;
};

struct ScoreOptions {
  bool causal = false, top_left = false;
  std::optional<int64_t> window_left, window_right, attention_chunk;
  std::optional<double> softmax_scale, softcap, dropout;
  std::optional<uint64_t> dropout_seed, dropout_offset;
};

// Options of one problem, for the commands that describe a single one.
struct ShapeOptions {
  std::string pass = "forward", dtype = "fp32", layout = "bshd", device = "cpu";
  int64_t batch = 1, heads = 4, head_dim = 64, threads = 0;
  std::optional<int64_t> kv_heads, seqlen, seqlen_q, seqlen_k, head_dim_v;

  Shape shape() const;
};
void declare(Arguments& arguments, ShapeOptions& options);
void declare(Arguments& arguments, ScoreOptions& options);

Pass pass_named(const std::string& name);
Type type_named(const std::string& name);
Layout layout_named(const std::string& name);
const char* name_of(Layout layout);
inline constexpr int64_t kMostThreads = 1024;
inline constexpr const char* kDeviceHelp = "where to compute: cpu, cuda or cuda:N";

// The sizes of a problem and whether it is causal, as every table shows them.
std::vector<Column> size_columns();
Shape shape_of(const Problem& problem);  // its sizes
std::vector<Cell> size_cells(const Shape& shape, bool causal);

// (B,S,H,D) as a view of memory in `layout`; throws Failure(usage), naming `name`, if 64 bits do not hold its size.
tw_tensor view_of(const char* name, void* data, Type type, Layout layout, int64_t b, int64_t s, int64_t h, int64_t d);
int64_t bytes_of(const tw_tensor& tensor);

// q, k, v, out, lse and, for backward, all gradients, without data.
struct Described {
  tw_attention attention;
  tw_attention_grad grad;
  bool backward;

  const tw_attention_grad* grad_or_null() const { return backward ? &grad : nullptr; }
};
Described describe(const Shape& shape, const ScoreOptions& scores);
// What the library would refuse with its own names for the sizes, in the words of the options they come from.
void check_options(const Shape& shape);
void apply(const ScoreOptions& scores, tw_attention& attention);

// What the library answers as a Failure, unless it is TW_OK.
void check(const Status& status);

Problem planned_problem(const Described& described);  // its data pointers are not looked at

}  // namespace tilewise::cli
