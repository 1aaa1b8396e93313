// What every kernel for GPUs would start, for GPUs with 99, 163 and 227 KB of shared memory a thread block: within the
// limits of the GPU, and nothing that planning did not load. Needs no GPU.
#include <gtest/gtest.h>

#include <utility>

#include "cases/case_data.h"
#include "core/problem.h"
#include "cuda/kernels.h"
#include "gpu/recorder.h"

namespace tilewise::gpu {
namespace {

constexpr int64_t kWithoutAsking = 48 << 10;  // of shared memory; more must be allowed at loading
constexpr int64_t kMostThreads = 1024, kMostBlocks = (int64_t{1} << 31) - 1;

// A kind of GPU: its multiprocessors and the shared memory that a thread block may have.
struct Limit {
  int multiprocessors;
  int64_t shared_bytes;
};
constexpr Limit kLimits[] = {{84, 99 << 10}, {108, 163 << 10}, {132, 227 << 10}};

void expect_within(const Limit& limit, const Kernel& row) {
  for (const auto& [kernel, bytes] : recorder().loaded) {
    EXPECT_LE(bytes, limit.shared_bytes) << row.name << " loads " << kernel;
  }
  for (const Start& start : recorder().started) {
    EXPECT_LE(start.shared_bytes, limit.shared_bytes) << row.name << " starts " << start.kernel;
    EXPECT_LE(start.threads, kMostThreads) << row.name << " starts " << start.kernel;
    EXPECT_LE(start.blocks, kMostBlocks) << row.name << " starts " << start.kernel;
    const auto loaded = recorder().loaded.find(start.kernel);
    EXPECT_TRUE(loaded != recorder().loaded.end()) << row.name << " starts, without loading it, " << start.kernel;
    const int64_t allowed = loaded == recorder().loaded.end() ? 0 : loaded->second;
    EXPECT_LE(start.shared_bytes, std::max(allowed, kWithoutAsking)) << row.name << " starts " << start.kernel;
  }
}

// Loads and starts each kernel that serves the problem, for each limit.
void try_all(const Problem& problem, std::map<std::string, int64_t>& served) {
  static char workspace[256];  // nothing runs
  static tw_fault fault;
  Launch launch;
  launch.workspace = workspace, launch.fault = &fault;
  for (const Kernel* row : cuda::kernels()) {
    Text reason;
    if (row->pass == problem.pass) row->refuse(problem, reason);
    if (row->pass != problem.pass || !reason.empty()) continue;
    for (const Limit& limit : kLimits) {
      const Settings settings{.workers = limit.multiprocessors, .fast_memory = limit.shared_bytes / 4};
      recorder() = {};
      Status status;
      if (row->load) status = row->load(problem, settings);
      if (status.ok()) status = row->launch(problem, settings, launch);
      EXPECT_TRUE(status.ok()) << row->name << ": " << status.message.chars;
      expect_within(limit, *row);
      if (testing::Test::HasFailure()) return;
    }
    ++served[row->name];
  }
}

void expect_all_served(const std::map<std::string, int64_t>& served) {
  for (const Kernel* row : cuda::kernels()) EXPECT_TRUE(served.contains(row->name)) << row->name;
}

TEST(GpuLaunchesTest, KeepTheLimitsOnEveryCase) {
  std::map<std::string, int64_t> served;
  for (const cases::Case& description : cases::all_cases()) {
    if (description.slow) continue;
    const cases::CaseData data(description);
    const cases::Outputs outputs = data.outputs();
    SCOPED_TRACE(description.name());
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !description.backward) continue;
      tw_attention attention = data.attention(outputs, pass);
      attention.device_type = TW_CUDA;
      const tw_attention_grad gradients = data.gradients(outputs);
      Problem problem;
      const Status status = make_problem(attention, pass == Pass::forward ? nullptr : &gradients, true, problem);
      ASSERT_TRUE(status.ok()) << status.message.chars;
      try_all(problem, served);
      if (HasFailure()) return;
    }
  }
  expect_all_served(served);
}

TEST(GpuLaunchesTest, KeepTheLimitsAtEveryHeadSize) {
  std::map<std::string, int64_t> served;
  for (const int32_t type : {TW_F32, TW_F16, TW_BF16}) {
    for (int64_t dim = 1; dim <= 512; dim += dim < 8 ? 7 : 8) {
      for (const int64_t value_dim : {dim, int64_t{8}, int64_t{128}}) {
        for (const int64_t length : {1, 100, 5000}) {
          tw_attention a;
          TW_INIT(a);
          a.device_type = TW_CUDA;
          a.q = a.k = tw_tensor_of(nullptr, type, 2, length, 4, dim);
          a.v = a.out = tw_tensor_of(nullptr, type, 2, length, 4, value_dim);
          a.lse = tw_tensor_of(nullptr, TW_F32, 2, 4, length, 1);
          SCOPED_TRACE("type " + std::to_string(type) + ", head sizes " + std::to_string(dim) + " and " +
                       std::to_string(value_dim) + ", length " + std::to_string(length));
          Problem problem;
          const Status status = make_problem(a, nullptr, false, problem);
          ASSERT_TRUE(status.ok()) << status.message.chars;
          try_all(problem, served);
          tw_attention_grad g;
          TW_INIT(g);
          g.dout = g.dv = a.v, g.dq = g.dk = a.q;
          const Status backward = make_problem(a, &g, false, problem);
          ASSERT_TRUE(backward.ok()) << backward.message.chars;
          try_all(problem, served);
          if (HasFailure()) return;
        }
      }
    }
  }
  expect_all_served(served);
}

// Forward and backward of a call that some kernels must refuse, and `plain` serves.
void expect_limits_kept(const tw_attention& a) {
  std::map<std::string, int64_t> served;
  tw_attention_grad g;
  TW_INIT(g);
  g.dout = g.dq = a.q, g.dk = g.dv = a.k;
  for (const tw_attention_grad* grad : {static_cast<const tw_attention_grad*>(nullptr), &std::as_const(g)}) {
    SCOPED_TRACE(std::string(grad ? "backward" : "forward") + ", type " + std::to_string(a.q.dtype));
    Problem problem;
    const Status status = make_problem(a, grad, false, problem);
    ASSERT_TRUE(status.ok()) << status.message.chars;
    try_all(problem, served);
  }
  EXPECT_TRUE(served.contains("cuda.plain.forward") && served.contains("cuda.plain.backward"));
}

// Any sequence of a packed call may be as long as all tokens, so that its grid grows with their product.
TEST(GpuLaunchesTest, KeepTheLimitsWithManyLongSequences) {
  constexpr int64_t kTokens = 1 << 20, kSequences = 3000;
  for (const int32_t type : {TW_F32, TW_BF16}) {
    tw_attention a;
    TW_INIT(a);
    a.device_type = TW_CUDA;
    a.q = a.out = tw_tensor_of(nullptr, type, 1, kTokens, 16, 64);
    a.k = a.v = tw_tensor_of(nullptr, type, 1, kTokens, 4, 64);
    a.lse = tw_tensor_of(nullptr, TW_F32, 1, 16, kTokens, 1);
    a.cu_seqlens_q = a.cu_seqlens_k = tw_tensor_of(nullptr, TW_I32, kSequences + 1, 1, 1, 1);
    expect_limits_kept(a);
  }
}

TEST(GpuLaunchesTest, KeepTheLimitsWithManyHeads) {
  constexpr int64_t kSequences = 1 << 27;
  for (const int32_t type : {TW_F32, TW_BF16}) {
    tw_attention a;
    TW_INIT(a);
    a.device_type = TW_CUDA;
    a.q = a.k = a.v = a.out = tw_tensor_of(nullptr, type, kSequences, 1, 32, 8);
    a.lse = tw_tensor_of(nullptr, TW_F32, kSequences, 32, 1, 1);
    expect_limits_kept(a);
  }
}

}  // namespace
}  // namespace tilewise::gpu
