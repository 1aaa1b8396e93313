#include "cli/demo_data.h"

#include <algorithm>
#include <filesystem>

#include "cli/failure.h"
#include "cli/files/safetensors.h"
#include "cpu/common/element_values.h"

namespace tilewise::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "smollm2_layer.safetensors";

Buffer widen(const Array& array) {
  const int64_t elements = array.bytes.size() / size_of(array.dtype);
  Tensor row;
  row.data = array.bytes.data(), row.type = array.dtype;
  Buffer wide(elements * size_of(Type::f32), "the demo's input");
  cpu::read_values(row, 0, elements, wide.as<float>());
  return wide;
}

// to = the rows of `from`, again and again, in another type.
void repeat(const Buffer& from, const Buffer& to, Type type) {
  const int64_t count = from.size() / size_of(Type::f32), all = to.size() / size_of(type);
  Tensor row;
  row.data = to.data(), row.type = type;
  for (int64_t at = 0; at < all; at += count) {
    cpu::write_values(row, at, std::min(count, all - at), from.as<float>());
  }
}

}  // namespace

std::string demo_data_path(const std::string& given) {
  if (!given.empty()) return given;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / TILEWISE_DATA_FROM_PREFIX / kFile;
  return (fs::exists(installed, ignored) ? installed : fs::path(TILEWISE_SOURCE_DATA) / kFile).string();
}

DemoData::DemoData(const std::string& path) {
  const SafetensorsFile file(path);
  const Array q = file.read("q"), k = file.read("k"), v = file.read("v");
  const auto reject = [&] {
    fail(ExitCode::bad_input, "{}: q {}, k {}, v {} are not (1, tokens, heads, head_dim) of one layer", path,
         shape_text(q.shape), shape_text(k.shape), shape_text(v.shape));
  };
  if (q.shape.size() != 4 || k.shape.size() != 4 || k.shape != v.shape) reject();
  tokens_ = q.shape[1], heads_ = q.shape[2], kv_heads_ = k.shape[2], head_dim_ = q.shape[3];
  const bool fits = q.shape[0] == 1 && k.shape[0] == 1 && k.shape[1] == tokens_ && k.shape[3] == head_dim_;
  if (!fits || tokens_ == 0 || head_dim_ == 0 || kv_heads_ == 0 || heads_ % kv_heads_ != 0) reject();
  q_ = widen(q), k_ = widen(k), v_ = widen(v);
}

Workload DemoData::workload(const Wanted& wanted) const {
  Shape shape;
  shape.pass = wanted.pass, shape.dtype = wanted.dtype;
  shape.threads = wanted.threads, shape.device = wanted.device;
  shape.heads = heads_, shape.kv_heads = kv_heads_;
  shape.head_dim = shape.head_dim_v = head_dim_;
  shape.seqlen_q = shape.seqlen_k = wanted.tokens;
  ScoreOptions scores;
  scores.causal = true;
  Workload workload(shape, scores);
  workload.fill_randomly(1);
  repeat(q_, workload.q, shape.dtype);
  repeat(k_, workload.k, shape.dtype);
  repeat(v_, workload.v, shape.dtype);
  workload.upload();
  return workload;
}

}  // namespace tilewise::cli
