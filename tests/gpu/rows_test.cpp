// The rows of the CUDA back end as they are on any machine, and what is said where there is no GPU.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cases/case_data.h"
#include "core/backend.h"

namespace tilewise::gpu {
namespace {

// Of the multiprocessors and the shared memory of an H100, an A100 and an RTX 3090.
constexpr Settings kGpus[] = {{132, 232448 / 4}, {108, 166912 / 4}, {82, 101376 / 4}};

TEST(Rows, AreWellFormed) {
  ASSERT_FALSE(kernels(TW_CUDA).empty());
  std::set<std::string> names;
  for (const Kernel* kernel : kernels(TW_CUDA)) {
    SCOPED_TRACE(kernel->name);
    const std::string name = kernel->name, pass = name_of(kernel->pass);
    EXPECT_TRUE(names.insert(name).second) << "twice";
    EXPECT_EQ(name.substr(0, 5), "cuda.");
    EXPECT_EQ(name.substr(name.rfind('.') + 1), pass);
    EXPECT_EQ(kernel->isa, Isa::cuda);
    EXPECT_EQ(kernel->device_type, TW_CUDA);
    EXPECT_TRUE(kernel->runs_on && kernel->refuse && kernel->size && kernel->load && kernel->launch);
  }
}

TEST(Rows, StandBestFirst) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    bool fallback_seen = false;
    for (const Kernel* kernel : kernels(TW_CUDA)) {
      if (kernel->pass != pass) continue;
      EXPECT_FALSE(fallback_seen && kernel->rank == Rank::chosen) << kernel->name << " stands after the fallback";
      fallback_seen |= kernel->rank == Rank::fallback;
    }
    EXPECT_TRUE(fallback_seen) << "no kernel serves what the others refuse in a " << name_of(pass);
  }
}

Problem problem_of(const cases::Case& c, Pass pass) {
  const cases::CaseData data(c);
  tw_attention a = data.attention(data.outputs(), pass);
  const tw_attention_grad g = data.gradients(data.outputs());
  a.device_type = TW_CUDA;
  Problem problem;
  const Status status = make_problem(a, pass == Pass::backward ? &g : nullptr, false, problem);
  EXPECT_TRUE(status.ok()) << status.message.chars;
  return problem;
}

void expect_answers(const Kernel& kernel, const Problem& problem) {
  Text reason;
  kernel.refuse(problem, reason);
  EXPECT_TRUE(reason.empty() || kernel.rank != Rank::fallback) << kernel.name << ": " << reason.chars;
  if (!reason.empty()) return;
  for (const Settings& settings : kGpus) {
    EXPECT_LT(kernel.size(problem, settings).workspace_bytes, uint64_t{1} << 31) << kernel.name;
  }
}

void expect_answers(std::span<const cases::Case> list) {
  for (const cases::Case& c : list) {
    if (c.slow) continue;
    SCOPED_TRACE(c.name());
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !c.backward) continue;
      const Problem problem = problem_of(c, pass);
      for (const Kernel* kernel : kernels(TW_CUDA)) {
        if (kernel->pass == pass) expect_answers(*kernel, problem);
      }
    }
  }
}

TEST(Rows, RefuseAndSizeTheTableWithoutAGpu) { expect_answers(cases::all_cases()); }
TEST(Rows, RefuseAndSizeTileCasesWithoutAGpuSlow) { expect_answers(cases::tile_cases()); }

// Twice the tokens, at most about twice the workspace; standard attention keeps the scores of all pairs.
TEST(Rows, NeedMemoryThatGrowsWithTheTokens) {
  for (const Kernel* kernel : kernels(TW_CUDA)) {
    if (kernel->algorithm == Algorithm::standard) continue;
    for (const int64_t dim : {64, 100, 256}) {
      const auto workspace = [&](int64_t tokens) {
        cases::Case c;
        c.seqlen_q = c.seqlen_k = 1, c.heads = 4, c.heads_kv = 2, c.head_dim = c.value_dim = dim, c.type = Type::bf16;
        Problem problem = problem_of(c, kernel->pass);
        problem.max_rows = problem.max_keys = problem.total_rows = problem.total_keys = tokens;
        for (Tensor* t :
             {&problem.q, &problem.k, &problem.v, &problem.out, &problem.dout, &problem.dq, &problem.dk, &problem.dv}) {
          t->shape[1] = tokens, t->stride[1] = t->shape[2] * t->shape[3];
        }
        problem.lse.shape[2] = tokens, problem.lse.stride[2] = 1, problem.lse.stride[1] = tokens;
        Text reason;
        kernel->refuse(problem, reason);
        return reason.empty() ? kernel->size(problem, kGpus[0]).workspace_bytes : 0;
      };
      EXPECT_LE(workspace(1 << 18), 2.1 * static_cast<double>(workspace(1 << 17)) + (1 << 20)) << kernel->name;
    }
  }
}

// Dao-AILab/flash-attention#1011: memory for each sequence as long as the longest one.
TEST(Rows, flash_attention_1011) {
  cases::Case c;
  c.packed_q.assign(1001, 1);
  c.packed_q[0] = 64536;
  c.packed_k.assign(1001, 1);
  c.batch = 1001, c.heads = c.heads_kv = 1, c.head_dim = c.value_dim = 8, c.type = Type::bf16;
  c.seqlen_q = 64536, c.seqlen_k = 1;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    Problem problem = problem_of(c, pass);
    problem.max_keys = 64536;
    for (const Kernel* kernel : kernels(TW_CUDA)) {
      Text reason;
      if (kernel->pass == pass) kernel->refuse(problem, reason);
      if (kernel->pass != pass || !reason.empty() || kernel->algorithm == Algorithm::standard) continue;
      const int64_t rows = problem.total_rows + 256 * problem.batch;  // whole tiles of each sequence
      EXPECT_LE(kernel->size(problem, kGpus[0]).workspace_bytes,
                static_cast<uint64_t>(rows) * (64 + 8) * 4 * 2 + (8 << 20))
          << kernel->name;
    }
  }
}

// ---- A machine without a GPU.

class NoGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (check_gpu(0).ok()) GTEST_SKIP() << "this machine has a GPU";
  }
};

TEST_F(NoGpu, IsADeviceErrorThatSaysWhatIsMissing) {
  float memory[64] = {};
  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CUDA;
  a.q = a.k = a.v = tw_tensor_of(memory, TW_F32, 1, 1, 1, 8);
  a.out = tw_tensor_of(memory + 32, TW_F32, 1, 1, 1, 8);
  tw_plan plan;
  EXPECT_EQ(tw_attention_plan(&a, nullptr, &plan), TW_DEVICE_ERROR);
  EXPECT_NE(std::string(tw_last_error()).find("NVIDIA"), std::string::npos) << tw_last_error();
  EXPECT_EQ(tw_attention_forward(&a, nullptr), TW_DEVICE_ERROR);
  EXPECT_EQ(memory[32], 0) << "outputs stay as they were";
}

TEST_F(NoGpu, IsExplainedByInfo) {
  std::string text(tw_info(nullptr, 0) + 1, ' ');
  tw_info(text.data(), text.size());
  const size_t at = text.find("\"name\": \"cuda\"");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_NE(text.find("NVIDIA", at), std::string::npos) << text.substr(at);
}

}  // namespace
}  // namespace tilewise::gpu
