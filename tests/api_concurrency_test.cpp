// Every kernel with threads of every kind: 1 to 8 of the library's, a host's pools, callers side by side with one plan,
// with plans of their own and without. Same bits every time. TSan watches it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <thread>

#include "api_call.h"
#include "core/kernel.h"

namespace tilewise::test {
namespace {

// Several units for every kernel, and keys for several chunks of the backward, whose dQ go from hand to hand.
constexpr int64_t kRows = 96, kKeys = 1100, kHeads = 2, kDim = 8;

struct Inputs {
  explicit Inputs(int32_t dtype) : type(dtype) {}
  int32_t type;
  std::vector<char> q = numbers(kRows * kHeads * kDim, 1), k = numbers(kKeys * kDim, 2);
  std::vector<char> v = numbers(kKeys * kDim, 3), dout = numbers(kRows * kHeads * kDim, 4);

 private:
  std::vector<char> numbers(int64_t count, uint32_t seed) const {
    const std::vector<float> floats = Call::numbers(count, seed);
    std::vector<char> bytes(floats.size() * (type == TW_F32 ? 4 : 2));
    for (size_t i = 0; i < floats.size(); ++i) {
      const auto bits = std::bit_cast<uint32_t>(floats[i]);
      const auto upper = static_cast<uint16_t>(bits >> 16);
      if (type == TW_F32) std::memcpy(&bytes[i * 4], &bits, 4);
      if (type == TW_BF16) std::memcpy(&bytes[i * 2], &upper, 2);
    }
    return bytes;
  }
};

// Both passes over inputs that may be shared, with outputs of its own.
class Step {
 public:
  Step(const Inputs& in, int32_t threads) : out_(in.q.size()), dq_(in.q.size()), dk_(in.k.size()), dv_(in.v.size()) {
    TW_INIT(a);
    a.device_type = TW_CPU;
    a.threads = threads;
    a.flags = TW_CAUSAL;
    a.q = tw_tensor_of(in.q.data(), in.type, 1, kRows, kHeads, kDim);
    a.k = tw_tensor_of(in.k.data(), in.type, 1, kKeys, 1, kDim);
    a.v = tw_tensor_of(in.v.data(), in.type, 1, kKeys, 1, kDim);
    a.out = tw_tensor_of(out_.data(), in.type, 1, kRows, kHeads, kDim);
    a.lse = tw_tensor_of(lse_.data(), TW_F32, 1, kHeads, kRows, 1);
    TW_INIT(g);
    g.dout = tw_tensor_of(in.dout.data(), in.type, 1, kRows, kHeads, kDim);
    g.dq = tw_tensor_of(dq_.data(), in.type, 1, kRows, kHeads, kDim);
    g.dk = tw_tensor_of(dk_.data(), in.type, 1, kKeys, 1, kDim);
    g.dv = tw_tensor_of(dv_.data(), in.type, 1, kKeys, 1, kDim);
  }
  Step(const Step&) = delete;

  const tw_attention_grad* grad(bool backward) const { return backward ? &g : nullptr; }
  tw_status one_shot(bool backward, const tw_exec* exec = nullptr) {
    return backward ? tw_attention_backward(&a, &g, exec) : tw_attention_forward(&a, exec);
  }
  tw_status run(const tw_plan& plan, bool backward) {
    std::vector<char> memory(plan.workspace_bytes + 256);
    tw_exec e;
    TW_INIT(e);
    e.workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
    e.workspace_bytes = plan.workspace_bytes;
    return tw_attention_run(&plan, &a, grad(backward), &e);
  }
  void take_forward_of(const Step& other) { out_ = other.out_, lse_ = other.lse_; }
  bool same_bits(const Step& other) const {
    return out_ == other.out_ && lse_ == other.lse_ && dq_ == other.dq_ && dk_ == other.dk_ && dv_ == other.dv_;
  }

  tw_attention a;
  tw_attention_grad g;

 private:
  std::vector<char> out_, dq_, dk_, dv_;
  std::vector<float> lse_ = std::vector<float>(kHeads * kRows);
};

// ---- Pools that a host might have

using Body = void (*)(void* task_context, int64_t i);
using ParallelFor = void (*)(void* context, int64_t count, Body task, void* task_context);

void in_order(void*, int64_t count, Body task, void* context) {
  for (int64_t i = 0; i < count; ++i) task(context, i);
}
void in_reverse(void*, int64_t count, Body task, void* context) {
  while (count > 0) task(context, --count);
}
void on_another_thread(void*, int64_t count, Body task, void* context) {
  std::thread([=] { in_order(nullptr, count, task, context); }).join();
}
void on_a_thread_each(void*, int64_t count, Body task, void* context) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) threads.emplace_back(task, context, i);
  for (std::thread& thread : threads) thread.join();
}

// ---- Tests

struct Param {
  const Kernel* kernel;
  int32_t type;
  bool backward() const { return kernel->pass == Pass::backward; }
};

class EveryKernel : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    Text why_not;
    if (!GetParam().kernel->runs_on(0, why_not)) GTEST_SKIP() << why_not.chars;
    alone_.one_shot(false);  // what a backward starts from
    ASSERT_EQ(setenv("TILEWISE_FORCE_KERNEL", GetParam().kernel->name, 1), 0);
    ASSERT_EQ(alone_.one_shot(backward()), TW_OK) << tw_last_error();
  }
  void TearDown() override { unsetenv("TILEWISE_FORCE_KERNEL"); }

  bool backward() const { return GetParam().backward(); }
  void expect_same(int32_t threads, const tw_exec* exec) {
    Step step(inputs_, threads);
    step.take_forward_of(alone_);
    EXPECT_EQ(step.one_shot(backward(), exec), TW_OK) << tw_last_error();
    EXPECT_TRUE(step.same_bits(alone_)) << threads << " threads";
  }

  const Inputs inputs_ = Inputs(GetParam().type);
  Step alone_ = Step(inputs_, 1);
};

TEST_P(EveryKernel, GivesTheSameBitsOnAnyThreads) {
  for (int32_t threads = 1; threads <= 8; ++threads) expect_same(threads, nullptr);
}

TEST_P(EveryKernel, GivesTheSameBitsOnAHostsPool) {
  for (const ParallelFor parallel_for : {in_order, in_reverse, on_another_thread, on_a_thread_each}) {
    tw_thread_pool pool;
    TW_INIT(pool);
    pool.parallel_for = parallel_for;
    tw_exec e;
    TW_INIT(e);
    e.pool = &pool;
    for (const int32_t threads : {1, 4}) expect_same(threads, &e);
  }
}

// Callers take turns in what they do, so that at any time all of it goes on side by side.
TEST_P(EveryKernel, ServesCallersSideBySide) {
  constexpr int kCallers = 4, kRounds = 3;
  Step planner(inputs_, 3);
  tw_plan shared;
  ASSERT_EQ(tw_attention_plan(&planner.a, planner.grad(backward()), &shared), TW_OK) << tw_last_error();
  const auto call = [&](Step& step, int way) {
    if (way == 0) return step.run(shared, backward());
    if (way == 1) return step.one_shot(backward());
    step.a.threads = 2;
    tw_plan own;
    const tw_status status = tw_attention_plan(&step.a, step.grad(backward()), &own);
    return status == TW_OK ? step.run(own, backward()) : status;
  };
  int failures[kCallers] = {};
  std::thread callers[kCallers];
  for (int i = 0; i < kCallers; ++i) {
    callers[i] = std::thread([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        Step step(inputs_, 3);
        step.take_forward_of(alone_);
        failures[i] += call(step, (i + round) % 3) != TW_OK || !step.same_bits(alone_);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(std::count(failures, failures + kCallers, 0), kCallers);
}

std::vector<Param> every_kernel() {
  std::vector<Param> params;
  for (const Kernel* kernel : kernels(TW_CPU)) {
    params.push_back({kernel, TW_F32});
    if (kernel->rank == Rank::chosen) params.push_back({kernel, TW_BF16});  // dQ is summed elsewhere
  }
  return params;
}

std::string name_of_param(const testing::TestParamInfo<Param>& info) {
  std::string name = info.param.kernel->name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name + (info.param.type == TW_F32 ? "_fp32" : "_bf16");
}
INSTANTIATE_TEST_SUITE_P(Api, EveryKernel, testing::ValuesIn(every_kernel()), name_of_param);

}  // namespace
}  // namespace tilewise::test
