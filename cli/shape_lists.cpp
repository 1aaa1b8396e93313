#include "cli/shape_lists.h"

#include <algorithm>
#include <utility>

namespace tilewise::cli {
namespace {

// Without a list of its own an option has the value of another.
std::vector<int64_t> or_else(const std::vector<int64_t>& list, int64_t otherwise) {
  return list.empty() ? std::vector{otherwise} : list;
}

std::vector<std::pair<int64_t, int64_t>> seqlens_of(const ShapeLists& o) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const int64_t both : o.seqlen) {
    for (const int64_t q : or_else(o.seqlen_q, both)) {
      for (const int64_t k : or_else(o.seqlen_k, both)) {
        if (std::find(pairs.begin(), pairs.end(), std::pair(q, k)) == pairs.end()) pairs.emplace_back(q, k);
      }
    }
  }
  return pairs;
}

}  // namespace

void declare(Arguments& arguments, ShapeLists& lists) {
  arguments.choices("--pass", lists.passes, {"forward", "backward"}, "passes");
  arguments.choices("--dtype", lists.dtypes, {"fp32", "fp16", "bf16"}, "types of q, k, v, out");
  arguments.choices("--layout", lists.layouts, {"bshd", "bhsd"}, "orders of the axes in memory");
  arguments.integers("--batch", lists.batch, kExtent, "sequences");
  arguments.integers("--heads", lists.heads, kExtent, "query heads");
  arguments.integers("--kv-heads", lists.kv_heads, kExtent, "key/value heads [as --heads]");
  arguments.integers("--seqlen", lists.seqlen, kExtent, "query and key lengths");
  arguments.integers("--seqlen-q", lists.seqlen_q, kExtent, "query lengths [as --seqlen]");
  arguments.integers("--seqlen-k", lists.seqlen_k, kExtent, "key lengths [as --seqlen]");
  arguments.integers("--head-dim", lists.head_dim, kExtent, "head sizes of q and k");
  arguments.integers("--head-dim-v", lists.head_dim_v, kExtent, "head sizes of v and out [as --head-dim]");
  arguments.integers("--threads", lists.threads, {0, kMostThreads}, "threads, 0 = all cores");
  arguments.text("--device", lists.device, "DEVICE", kDeviceHelp);
}

std::vector<Shape> shapes_of(const ShapeLists& o) {
  std::vector<Shape> shapes(1);
  shapes[0].device = device_named(o.device);
  // Each list in turn multiplies the shapes so far.
  const auto vary = [&](const auto& values, const auto& set) {
    std::vector<Shape> more;
    for (const Shape& shape : shapes) {
      for (const auto& value : values(shape)) set(more.emplace_back(shape), value);
    }
    shapes = std::move(more);
  };
  const auto always = [](const auto& list) { return [&list](const Shape&) { return list; }; };
  const auto pairs = seqlens_of(o);
  vary(always(o.passes), [](Shape& s, const std::string& name) { s.pass = pass_named(name); });
  vary(always(o.dtypes), [](Shape& s, const std::string& name) { s.dtype = type_named(name); });
  vary(always(o.layouts), [](Shape& s, const std::string& name) { s.layout = layout_named(name); });
  vary(always(o.threads), [](Shape& s, int64_t n) { s.threads = n; });
  vary(always(o.batch), [](Shape& s, int64_t n) { s.batch = n; });
  vary(always(o.heads), [](Shape& s, int64_t n) { s.heads = n; });
  vary([&](const Shape& s) { return or_else(o.kv_heads, s.heads); }, [](Shape& s, int64_t n) { s.kv_heads = n; });
  vary(always(o.head_dim), [](Shape& s, int64_t n) { s.head_dim = n; });
  vary([&](const Shape& s) { return or_else(o.head_dim_v, s.head_dim); },
       [](Shape& s, int64_t n) { s.head_dim_v = n; });
  vary(always(pairs), [](Shape& s, auto pair) { s.seqlen_q = pair.first, s.seqlen_k = pair.second; });
  return shapes;
}

}  // namespace tilewise::cli
