// The traffic model against the bytes that `standard` and `v1` move: this program is linked with the counting build.
#include "traffic/traffic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace tilewise {
namespace {

struct Shape {
  int64_t batch = 1, rows = 64, keys = 64, heads = 1, heads_kv = 1, head_dim = 16, value_dim = 16;
  int32_t type = TW_F32;
};

std::string text_of(const Shape& s) {
  std::string text;
  for (int64_t n : {s.batch, s.rows, s.keys, s.heads, s.heads_kv, s.head_dim, s.value_dim, int64_t{s.type}})
    text += std::to_string(n) + " ";
  return text;
}

// A call whose tensors are all there, or (memory false) only planned.
struct Call {
  explicit Call(const Shape& shape, bool memory = true) : shape(shape), memory(memory) {
    const auto& [batch, rows, keys, heads, heads_kv, head_dim, value_dim, type] = shape;
    TW_INIT(a);
    TW_INIT(g);
    a.device_type = TW_CPU;
    a.q = tensor(type, batch, rows, heads, head_dim);
    a.k = tensor(type, batch, keys, heads_kv, head_dim);
    a.v = tensor(type, batch, keys, heads_kv, value_dim);
    a.out = tensor(type, batch, rows, heads, value_dim);
    a.lse = tensor(TW_F32, batch, heads, rows, 1);
    g.dout = tensor(type, batch, rows, heads, value_dim);
    g.dq = tensor(type, batch, rows, heads, head_dim);
    g.dk = tensor(type, batch, keys, heads_kv, head_dim);
    g.dv = tensor(type, batch, keys, heads_kv, value_dim);
  }

  // Zeros: what is moved does not depend on numbers.
  tw_tensor tensor(int32_t type, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    if (memory) buffers.emplace_back(static_cast<size_t>(n0 * n1 * n2 * n3 * 8));
    return tw_tensor_of(memory ? buffers.back().data() : nullptr, type, n0, n1, n2, n3);
  }
  tw_tensor ones(int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    const tw_tensor t = tensor(TW_BOOL, n0, n1, n2, n3);
    std::memset(t.data, 1, static_cast<size_t>(n0 * n1 * n2 * n3));
    return t;
  }
  tw_tensor numbers(const std::vector<int32_t>& values) {
    const auto count = static_cast<int64_t>(values.size());
    const tw_tensor t = tensor(TW_I32, count, 1, 1, 1);
    if (t.data) std::memcpy(t.data, values.data(), values.size() * sizeof(int32_t));
    return t;
  }

  Problem problem(Pass pass) const {
    Problem problem;
    const Status status = make_problem(a, pass == Pass::backward ? &g : nullptr, memory, problem);
    EXPECT_TRUE(status.ok()) << status.message.chars;
    return problem;
  }

  Shape shape;
  bool memory;
  tw_attention a;
  tw_attention_grad g;
  std::vector<std::vector<char>> buffers;
};

struct Free {
  void operator()(char* p) const { std::free(p); }
};

// What the kernel moved.
Traffic moved(const Problem& problem, const char* kernel, int64_t fast_memory) {
  PlanOptions options;
  options.force = kernel;
  options.fast_memory = fast_memory;
  Plan plan;
  Status status = make_plan(problem, options, plan);
  EXPECT_TRUE(status.ok()) << status.message.chars;
  const uint64_t bytes = (plan.sizing.workspace_bytes + 256) / 256 * 256;
  const std::unique_ptr<char, Free> workspace(static_cast<char*>(std::aligned_alloc(256, bytes)));
  Launch launch;
  launch.workspace = workspace.get();
  launch.parallel = own_threads();
  reset_counted_traffic();
  status = run_plan(plan, problem, launch);
  EXPECT_TRUE(status.ok()) << status.message.chars;
  const Traffic traffic = counted_traffic(), planned = *traffic_of(plan, problem);
  EXPECT_EQ(planned.bytes_read, traffic.bytes_read);
  EXPECT_EQ(planned.bytes_written, traffic.bytes_written);
  return traffic;
}

struct Rung {
  const char* kernel;
  Algorithm algorithm;
};
constexpr Rung kRungs[] = {{"standard", Algorithm::standard},
                           {"standard.portable", Algorithm::standard},
                           {"v1", Algorithm::v1},
                           {"v1.portable", Algorithm::v1}};

void expect_as_modelled(const Call& call, int64_t fast_memory) {
  for (const auto& [kernel, algorithm] : kRungs) {
    for (Pass pass : {Pass::forward, Pass::backward}) {
      SCOPED_TRACE(std::string(kernel) + " " + name_of(pass) + " " + text_of(call.shape) + "M " +
                   std::to_string(fast_memory));
      const Problem problem = call.problem(pass);
      const Traffic model = *traffic_of(algorithm, problem, fast_memory), count = moved(problem, kernel, fast_memory);
      EXPECT_EQ(model.bytes_read, count.bytes_read);
      EXPECT_EQ(model.bytes_written, count.bytes_written);
    }
  }
}

// ---- Model and count are equal.

TEST(Traffic, CountsInThisBuild) { EXPECT_TRUE(counts_traffic()); }

TEST(Traffic, LengthsHeadDimsAndFastMemory) {
  for (int64_t length : {1, 48, 200})
    for (int64_t dim : {4, 33, 64})
      for (int64_t fast_memory : {64, 1024, 5000, 100000})
        expect_as_modelled(Call({1, length, length, 1, 1, dim, dim}), fast_memory);
}

TEST(Traffic, UnevenShapes) {
  for (const Shape& shape : {Shape{2, 30, 70, 4, 2, 16, 24}, Shape{1, 70, 30, 3, 1, 40, 8}, Shape{3, 0, 5, 2, 2, 8, 8},
                             Shape{3, 5, 0, 2, 2, 8, 8}, Shape{0, 5, 5, 2, 2, 8, 8}})
    for (int32_t type : {TW_F32, TW_BF16}) {
      Shape typed = shape;
      typed.type = type;
      expect_as_modelled(Call(typed), 1500);
    }
}

struct Option {
  const char* name;
  void (*set)(Call& call);
};

const Option kOptions[] = {
    {"causal", [](Call& c) { c.a.flags |= TW_CAUSAL; }},
    {"causal, top left", [](Call& c) { c.a.flags |= TW_CAUSAL | TW_TOP_LEFT; }},
    {"window",
     [](Call& c) {
       c.a.flags |= TW_WINDOW_LEFT | TW_WINDOW_RIGHT;
       c.a.window_left = 20, c.a.window_right = 3;
     }},
    {"lengths",
     [](Call& c) {
       c.a.seqused_q = c.numbers({17, 40, 0});
       c.a.seqused_k = c.numbers({50, 0, 90});
     }},
    {"left padding",
     [](Call& c) {
       c.a.leftpad_k = c.numbers({5, 60, 90});
     }},
    {"intervals of each head",
     [](Call& c) {
       std::vector<int32_t> begin(3 * 4 * 61);
       for (size_t i = 0; i < begin.size(); ++i) begin[i] = static_cast<int32_t>(i * 7 % 100);
       c.a.key_begin = c.numbers(begin);
       c.a.key_begin.shape[0] = 3, c.a.key_begin.shape[1] = 4, c.a.key_begin.shape[2] = 61;
       c.a.key_begin.stride[0] = 4 * 61, c.a.key_begin.stride[1] = 61, c.a.key_begin.stride[2] = 1;
     }},
    {"bias", [](Call& c) { c.a.bias = c.tensor(TW_F16, 1, 4, 1, 90); }},
    {"mask", [](Call& c) { c.a.mask = c.ones(3, 1, 61, 90); }},
    {"mask of the tail",
     [](Call& c) {
       c.a.flags |= TW_MASK_TAIL;
       c.a.mask = c.ones(3, 1, 61, 40);
     }},
    {"softcap", [](Call& c) { c.a.softcap = 20; }},
    {"dropout", [](Call& c) { c.a.dropout_p = 0.25f; }},
    {"no dq", [](Call& c) { c.g.dq.dtype = TW_NONE; }},
    {"no dk", [](Call& c) { c.g.dk.dtype = TW_NONE; }},
    {"no dv", [](Call& c) { c.g.dv.dtype = TW_NONE; }},
    {"dlse", [](Call& c) { c.g.dlse = c.tensor(TW_F32, 3, 4, 61, 1); }},
    {"accumulate", [](Call& c) { c.g.flags |= TW_GRAD_ACCUMULATE; }},
};

TEST(Traffic, EveryOption) {
  for (const Option& option : kOptions)
    for (int64_t fast_memory : {700, 6000}) {
      SCOPED_TRACE(option.name);
      Call call({3, 61, 90, 4, 2, 16, 8});
      option.set(call);
      expect_as_modelled(call, fast_memory);
    }
}

TEST(Traffic, Prior) {
  Call call({2, 61, 90, 4, 2, 16, 8});
  call.a.prior_out = call.tensor(TW_F32, 2, 61, 4, 8);
  call.a.prior_lse = call.tensor(TW_F32, 2, 4, 61, 1);
  for (const auto& [kernel, algorithm] : kRungs) {
    const Problem problem = call.problem(Pass::forward);
    const Traffic model = *traffic_of(algorithm, problem, 1500), count = moved(problem, kernel, 1500);
    EXPECT_EQ(model.bytes_read, count.bytes_read) << kernel;
    EXPECT_EQ(model.bytes_written, count.bytes_written) << kernel;
  }
}

TEST(Traffic, PackedSequences) {
  Call call({1, 100, 150, 4, 2, 16, 8});
  call.a.cu_seqlens_q = call.numbers({0, 30, 30, 95});
  call.a.cu_seqlens_k = call.numbers({0, 60, 70, 150});
  call.a.flags |= TW_CAUSAL;
  expect_as_modelled(call, 1500);
}

// Squares of two heads do not fit at once: sums of dK and dV go from head to head through memory.
TEST(Traffic, SlowHeadsOfAGroupOneByOne) { expect_as_modelled(Call({1, 2500, 2500, 3, 1, 8, 8}), 20000); }

// ---- How the model grows: standard as N^2, the others as N^2 d^2 / M.

struct Growth {
  double with_length, with_dim, with_memory;  // exponents: by how many doublings bytes grow when one number doubles
};

Growth growth(Algorithm algorithm, Pass pass, int64_t length, int64_t dim, int64_t fast_memory) {
  const auto bytes = [&](int64_t n, int64_t d, int64_t m) {
    const Traffic t = *traffic_of(algorithm, Call({1, n, n, 1, 1, d, d}, false).problem(pass), m);
    return static_cast<double>(t.bytes_read + t.bytes_written);
  };
  const double base = bytes(length, dim, fast_memory);
  return {std::log2(bytes(2 * length, dim, fast_memory) / base), std::log2(bytes(length, 2 * dim, fast_memory) / base),
          std::log2(bytes(length, dim, 2 * fast_memory) / base)};
}

TEST(Traffic, StandardGrowsAsTheSquareOfTheLength) {
  for (Pass pass : {Pass::forward, Pass::backward})
    for (int64_t length : {8192, 32768})
      for (int64_t dim : {32, 64})
        for (int64_t fast_memory : {262144, 1048576}) {
          const Growth g = growth(Algorithm::standard, pass, length, dim, fast_memory);
          EXPECT_NEAR(g.with_length, 2, 0.05);
          EXPECT_NEAR(g.with_dim, 0, 0.15);
          EXPECT_NEAR(g.with_memory, 0, 0.05);
        }
}

TEST(Traffic, FlashAttentionGrowsAsItsBoundSays) {
  for (Algorithm algorithm : {Algorithm::v1, Algorithm::v2})
    for (Pass pass : {Pass::forward, Pass::backward})
      for (int64_t length : {16384, 65536})
        for (int64_t dim : {64, 128})
          for (int64_t fast_memory : {32768, 131072}) {
            const Growth g = growth(algorithm, pass, length, dim, fast_memory);
            EXPECT_NEAR(g.with_length, 2, 0.1);
            EXPECT_NEAR(g.with_dim, 2, 0.2);
            EXPECT_NEAR(g.with_memory, -1, 0.15);
          }
}

// The paper's claim at its own sizes: fewer bytes than standard for every d and M of a GPU or a CPU.
TEST(Traffic, FlashAttentionMovesLess) {
  for (Pass pass : {Pass::forward, Pass::backward})
    for (int64_t dim : {64, 128}) {
      const Problem problem = Call({1, 8192, 8192, 1, 1, dim, dim}, false).problem(pass);
      const auto bytes = [&](Algorithm algorithm) {
        const Traffic t = *traffic_of(algorithm, problem, 131072);
        return t.bytes_read + t.bytes_written;
      };
      EXPECT_LT(bytes(Algorithm::v1), bytes(Algorithm::standard));
      EXPECT_LT(bytes(Algorithm::v2), bytes(Algorithm::v1));
    }
}

// ---- The rest of the model.

TEST(Traffic, FlopsCountLivePairs) {
  Call call({2, 100, 100, 4, 2, 16, 24}, false);
  EXPECT_EQ(traffic_of(Algorithm::v1, call.problem(Pass::forward), 1000)->flops, 2 * 2 * 4 * 100 * 100 * (16 + 24));
  EXPECT_EQ(traffic_of(Algorithm::v1, call.problem(Pass::backward), 1000)->flops,
            2 * 2 * 4 * 100 * 100 * (3 * 16 + 2 * 24));
  call.a.flags |= TW_CAUSAL;
  EXPECT_EQ(traffic_of(Algorithm::standard, call.problem(Pass::forward), 1000)->flops,
            2 * 2 * 4 * (100 * 101 / 2) * (16 + 24));
}

TEST(Traffic, QueriesThatStayReadKeysOnceABlock) {
  // M = 4096, d = 64: blocks of 16 rows.
  const Problem problem = Call({1, 160, 100, 1, 1, 64, 64}, false).problem(Pass::forward);
  const Traffic t = *traffic_of(Algorithm::v2, problem, 4096);
  EXPECT_EQ(t.bytes_read, 4 * (160 * 64 + 10 * 100 * 128));
  EXPECT_EQ(t.bytes_written, 4 * (160 * 64 + 160));
}

// Of a kernel for GPUs with tiles of so many rows and keys; needs no GPU.
Traffic on_gpu(const Call& call, Pass pass, Algorithm algorithm, int64_t rows, int64_t keys) {
  Kernel kernel{};
  kernel.algorithm = algorithm;
  kernel.device_type = TW_CUDA;
  Plan plan;
  plan.kernel = &kernel;
  plan.sizing.query_rows = rows, plan.sizing.keys = plan.sizing.chunk_keys = keys;
  return *traffic_of(plan, call.problem(pass));
}
Traffic on_gpu(const Call& call, Pass pass) { return on_gpu(call, pass, Algorithm::standard, 128, 128); }

// What ncu counted between the L2 cache and the multiprocessors of an H200: bf16, 16 heads, no mask.
struct Counted {
  Algorithm algorithm;
  Pass pass;
  int64_t seqlen, dim, rows, keys;  // of the tile
  int64_t sectors;                  // of 32 bytes, read and written
};
constexpr Counted kCounted[] = {
    {Algorithm::standard, Pass::forward, 4096, 128, 128, 128, 68'064'200 + 47'424'499 + 50'522'492},
    {Algorithm::v1, Pass::forward, 4096, 128, 32, 128, 62'485'673 + 36'188'109},
    {Algorithm::v1, Pass::backward, 4096, 128, 64, 128, 103'580'300 + 37'748'003},
    {Algorithm::v2, Pass::forward, 4096, 128, 256, 64, 25'952'256 + 532'480},
    {Algorithm::v2, Pass::backward, 4096, 128, 64, 128, 54'534'144 + 36'720'641},
};

TEST(Traffic, OnAGpuIsWithinATenthOfWhatWasCounted) {
  for (const Counted& c : kCounted) {
    const Call call({1, c.seqlen, c.seqlen, 16, 16, c.dim, c.dim, TW_BF16}, false);
    const Traffic t = on_gpu(call, c.pass, c.algorithm, c.rows, c.keys);
    const double ratio = static_cast<double>(t.bytes_read + t.bytes_written) / static_cast<double>(32 * c.sectors);
    EXPECT_NEAR(ratio, 1, 0.1) << static_cast<int>(c.algorithm) << " " << name_of(c.pass) << " " << c.seqlen;
  }
}

int64_t copied(int64_t bytes) { return bytes / 2 * 3; }  // to padded rows of shared memory

TEST(Traffic, StandardOnAGpuMovesEachSquareOnceAStep) {
  Call call({1, 300, 520, 1, 1, 64, 40, TW_BF16}, false);
  const int64_t square = 2 * 300 * 520, q = 2 * 300 * 64, k = 2 * 520 * 64, v = 2 * 520 * 40, out = 2 * 300 * 40;
  const Traffic forward = on_gpu(call, Pass::forward);  // 3 x 5 tiles
  EXPECT_EQ(forward.bytes_read, copied(5 * q + 3 * k) + square + copied(square + 3 * v));
  EXPECT_EQ(forward.bytes_written, square + square + (out + 4 * 300));
  const Traffic backward = on_gpu(call, Pass::backward);
  EXPECT_EQ(backward.bytes_read, (2 * out + 4 * 300) + copied(5 * q + 3 * k) + copied(5 * out + 3 * v) + 2 * square +
                                     copied(3 * square + 5 * out + 5 * q + 3 * k));
  EXPECT_EQ(backward.bytes_written, 2 * square + 2 * square + q + k + v);
}

TEST(Traffic, StandardOnAGpuKeepsScoresOfFp16InFp32) {
  Call call({1, 256, 256, 1, 1, 64, 64, TW_BF16}, false);
  const Traffic narrow = on_gpu(call, Pass::forward);
  call.shape.type = TW_F16;
  for (tw_tensor* t : {&call.a.q, &call.a.k, &call.a.v, &call.a.out}) t->dtype = TW_F16;
  const Traffic wide = on_gpu(call, Pass::forward);
  EXPECT_EQ(wide.bytes_read - narrow.bytes_read, 2 * 256 * 256);
  EXPECT_EQ(wide.bytes_written - narrow.bytes_written, 2 * 256 * 256);
}

TEST(Traffic, StandardOnAGpuMovesDeadPairsInsideTheHull) {
  Call call({1, 256, 512, 1, 1, 64, 64, TW_BF16}, false);
  const int64_t whole = on_gpu(call, Pass::forward).bytes_written;
  call.a.flags = TW_CAUSAL;
  EXPECT_EQ(on_gpu(call, Pass::forward).bytes_written, whole);
  call.a.flags = TW_CAUSAL | TW_TOP_LEFT;  // keys from 256 on are nobody's
  EXPECT_EQ(on_gpu(call, Pass::forward).bytes_written, whole - 2 * 2 * 256 * 256);
}

TEST(Traffic, DeadBlocksAreNotMoved) {
  Call call({1, 1024, 1024, 1, 1, 16, 16}, false);
  for (Algorithm algorithm : {Algorithm::v1, Algorithm::v2}) {
    const int64_t whole = traffic_of(algorithm, call.problem(Pass::forward), 1024)->bytes_read;
    call.a.flags = TW_CAUSAL;
    const int64_t causal = traffic_of(algorithm, call.problem(Pass::forward), 1024)->bytes_read;
    call.a.flags = 0;
    EXPECT_NEAR(static_cast<double>(causal) / static_cast<double>(whole), 0.5, 0.05);
  }
}

TEST(Traffic, ReadsNoDataOfAPlan) {
  Call call({3, 61, 90, 4, 2, 16, 8}, false);
  const Problem whole = call.problem(Pass::backward);
  call.a.seqused_k = call.numbers({1, 2, 3});
  call.a.key_end = call.tensor(TW_I32, 3, 4, 61, 1);
  const Problem planned = call.problem(Pass::backward);
  for (Algorithm algorithm : {Algorithm::standard, Algorithm::v1, Algorithm::v2})
    EXPECT_EQ(traffic_of(algorithm, planned, 1500)->bytes_read, traffic_of(algorithm, whole, 1500)->bytes_read);
  Call packed({1, 120, 90, 4, 2, 16, 8}, false);
  packed.a.cu_seqlens_q = packed.a.cu_seqlens_k = packed.numbers({0, 1, 2, 3});
  EXPECT_EQ(traffic_of(Algorithm::v1, packed.problem(Pass::forward), 1500)->flops, 2 * 3 * 4 * 40 * 30 * (16 + 8));
}

// Numbers are right or absent: just below the bound no sum has wrapped.
TEST(Traffic, HasNoNumbersThatPass64Bits) {
  bool some = false, none = false;
  for (int64_t keys = 1 << 10; keys <= int64_t{1} << 40; keys *= 4) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const Algorithm algorithm : {Algorithm::standard, Algorithm::v1, Algorithm::v2}) {
        for (const int64_t fast_memory : {int64_t{1}, int64_t{1} << 20, INT64_MAX}) {
          tw_attention a;
          tw_attention_grad g;
          TW_INIT(a), TW_INIT(g);
          a.device_type = TW_CPU;
          a.q = a.out = tw_tensor_of(nullptr, TW_F32, 1, 1024, 1, 64);
          a.k = a.v = tw_tensor_of(nullptr, TW_F32, 1, keys, 1, 64);
          a.lse = tw_tensor_of(nullptr, TW_F32, 1, 1, 1024, 1);
          g.dout = g.dq = a.q, g.dk = g.dv = a.k;
          Problem problem;
          ASSERT_TRUE(make_problem(a, pass == Pass::backward ? &g : nullptr, false, problem).ok());
          const std::optional<Traffic> t = traffic_of(algorithm, problem, fast_memory);
          (t ? some : none) = true;
          if (!t) continue;
          EXPECT_GE(static_cast<double>(t->flops), 2.0 * 1024 * 128 * static_cast<double>(keys));
          EXPECT_GE(static_cast<double>(t->bytes_read), 2 * 4 * 64 * static_cast<double>(keys)) << keys;
          EXPECT_GE(t->bytes_written, 1024 * 64 * 4);
          EXPECT_GT(t->bytes_read + t->bytes_written, 0);
        }
      }
    }
  }
  EXPECT_TRUE(some && none);
}

}  // namespace
}  // namespace tilewise
