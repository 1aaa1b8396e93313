// What only a GPU can get wrong: the same bits again and again, streams, threads, captured graphs, state that the
// device reads, bad pointers and bad numbers.
#include <cuda.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "cases/measure.h"
#include "core/backend.h"
#include "gpu/device_call.h"

namespace tilewise::gpu {
namespace {

class Device : public EveryFamily {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Device);
INSTANTIATE_TEST_SUITE_P(Gpu, Device, testing::ValuesIn(families()), test_name);

constexpr Sizes kMiddling = {.batch = 2, .rows = 301, .keys = 420, .heads = 6, .heads_kv = 2, .dim = 64};

// Copies of a call's results, to be compared with later ones on the device.
class Kept {
 public:
  Kept(const DeviceCall& call, bool backward) : call_(call), backward_(backward), count_(sizeof(unsigned long long)) {
    for (const DeviceBytes* result : call.results(backward)) {
      copies_.emplace_back(result->size());
      EXPECT_EQ(cudaMemcpy(copies_.back().data(), result->data(), result->size(), cudaMemcpyDefault), cudaSuccess);
    }
    EXPECT_EQ(cudaMemset(count_.data(), 0, count_.size()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // copies on the device may return before
  }
  void compare(cudaStream_t stream) const {
    const auto results = call_.results(backward_);
    for (size_t i = 0; i < results.size(); ++i) {
      count_differences(*results[i], copies_[i], reinterpret_cast<unsigned long long*>(count_.data()), stream);
    }
  }
  unsigned long long differences() const {
    unsigned long long count = ~0ull;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(&count, count_.data(), sizeof count, cudaMemcpyDefault), cudaSuccess);
    return count;
  }

 private:
  const DeviceCall& call_;
  bool backward_;
  DeviceBytes count_;
  std::vector<DeviceBytes> copies_;
};

// ---- The same bits. Other work comes and goes, so that blocks start late and in another order.

void repeat(DeviceCall& call, bool backward, int times) {
  RUN_OR_SKIP(call.plan_and_run(backward));
  const Kept first(call, backward);
  const Stream stream, other;
  for (int i = 0; i < times; ++i) {
    if (i % 3 == 0) keep_busy(1 + i * 37 % 200, 20000 + i * 7919 % 100000, other.stream);
    RUN_OR_SKIP(call.run(backward, stream.stream));
    first.compare(stream.stream);
  }
  EXPECT_EQ(first.differences(), 0u) << "bytes differ in " << times << " runs";
}

void repeat_both(DeviceCall& call, int times) {
  call.a.flags |= TW_DETERMINISTIC;
  repeat(call, false, times);
  if (!testing::Test::IsSkipped() && !testing::Test::HasFailure()) repeat(call, true, times);
}

// Dao-AILab/flash-attention#414: dq differs from run to run by its atomic sums.
TEST_P(Device, AThousandRunsGiveTheSameBits) {
  DeviceCall call(Type::bf16, kMiddling, true);
  repeat_both(call, 1000);
}
// Dao-AILab/flash-attention#1596: the switch for deterministic gradients is accepted and ignored.
TEST_P(Device, AThousandCausalRunsGiveTheSameBits) {
  DeviceCall call(Type::bf16, kMiddling, true);
  call.a.flags = TW_CAUSAL;
  repeat_both(call, 1000);
}
// Other head sizes, types and options have other tiles, which take turns in other ways.
TEST_P(Device, EveryKindOfTileGivesTheSameBits) {
  for (const Type type : {Type::bf16, Type::f32})
    for (const int64_t dim : {64, 96, 128, 256})
      for (const char* option : {"none", "window", "softcap"}) {
        SCOPED_TRACE(testing::Message() << name_of(type) << ", head size " << dim << ", " << option);
        Sizes sizes = kMiddling;
        sizes.dim = dim;
        DeviceCall call(type, sizes, true);
        call.a.flags = TW_CAUSAL;
        if (std::string_view(option) == "window") call.a.flags |= TW_WINDOW_LEFT, call.a.window_left = 100;
        if (std::string_view(option) == "softcap") call.a.softcap = 20;
        Status status = call.plan(false);
        if (status.ok()) status = call.plan(true);
        if (status.code == TW_UNSUPPORTED) continue;  // the family refuses it
        repeat_both(call, 100);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
}

// ---- Streams and threads.

TEST_P(Device, ThreadsOnStreamsOfTheirOwn) {
  constexpr int kCalls = 2, kTimes = 100;
  DeviceCall calls[kCalls] = {{Type::bf16, kMiddling, true}, {Type::f16, {1, 700, 130, 4, 4, 128}, true}};
  for (DeviceCall& call : calls) {
    call.a.flags = TW_DETERMINISTIC;
    RUN_OR_SKIP(call.plan_and_run(false));
    RUN_OR_SKIP(call.plan_and_run(true));
  }
  const Kept forward[kCalls] = {{calls[0], false}, {calls[1], false}},
             backward[kCalls] = {{calls[0], true}, {calls[1], true}};
  const Stream streams[kCalls];
  std::thread threads[kCalls];
  Status statuses[kCalls];
  for (int t = 0; t < kCalls; ++t) {
    threads[t] = std::thread([&, t] {
      for (int i = 0; i < kTimes && statuses[t].ok(); ++i) {
        statuses[t] = calls[t].run(false, streams[t].stream);
        forward[t].compare(streams[t].stream);
        if (statuses[t].ok()) statuses[t] = calls[t].run(true, streams[t].stream);
        backward[t].compare(streams[t].stream);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kCalls; ++t) {
    EXPECT_TRUE(statuses[t].ok()) << statuses[t].message.chars;
    EXPECT_EQ(forward[t].differences(), 0u);
    EXPECT_EQ(backward[t].differences(), 0u);
  }
}

// huggingface/candle#3596: kernels on the default stream read a query that is not there yet.
TEST_P(Device, candle_3596) {
  DeviceCall call(Type::bf16, kMiddling, true);
  call.a.flags = TW_DETERMINISTIC;
  RUN_OR_SKIP(call.plan_and_run(false));
  RUN_OR_SKIP(call.plan_and_run(true));
  const Kept forward(call, false), backward(call, true);
  const Stream stream;
  for (int i = 0; i < 50; ++i) {
    CUDA_OK(cudaMemsetAsync(call.q.data(), 0, call.q.size(), stream.stream));
    keep_busy(1, 500000, stream.stream);
    fill(call.q, call.type, kQ, stream.stream);
    RUN_OR_SKIP(call.run(false, stream.stream));
    RUN_OR_SKIP(call.run(true, stream.stream));
    forward.compare(stream.stream), backward.compare(stream.stream);
  }
  EXPECT_EQ(forward.differences(), 0u);
  EXPECT_EQ(backward.differences(), 0u);
}

// ---- Captured graphs. Work on any other stream would end the capture.

struct Graph {
  cudaGraphExec_t graph = nullptr;
  ~Graph() {
    if (graph) (void)cudaGraphExecDestroy(graph);
  }
};

void capture(DeviceCall& call, cudaStream_t stream, Graph& graph) {
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const Status forward = call.run(false, stream), backward = call.run(true, stream);
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  ASSERT_TRUE(forward.ok()) << forward.message.chars;
  ASSERT_TRUE(backward.ok()) << backward.message.chars;
  CUDA_OK(ended);
  CUDA_OK(cudaGraphInstantiate(&graph.graph, captured, 0));
  CUDA_OK(cudaGraphDestroy(captured));
}

TEST_P(Device, AGraphReplaysOnNewInputs) {
  DeviceCall call(Type::bf16, kMiddling, true);
  call.a.flags = TW_DETERMINISTIC;
  RUN_OR_SKIP(call.plan(false));
  RUN_OR_SKIP(call.plan(true));
  const Stream stream;
  Graph graph;
  ASSERT_NO_FATAL_FAILURE(capture(call, stream.stream, graph));
  for (const uint64_t tensor : {11, 12}) {
    fill(call.q, call.type, tensor);
    RUN_OR_SKIP(call.plan_and_run(false));
    RUN_OR_SKIP(call.plan_and_run(true));
    const Kept forward(call, false), backward(call, true);
    for (const bool pass : {false, true})
      for (const DeviceBytes* result : call.results(pass)) result->poison();
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaGraphLaunch(graph.graph, stream.stream));
    forward.compare(stream.stream), backward.compare(stream.stream);
    EXPECT_EQ(forward.differences(), 0u);
    EXPECT_EQ(backward.differences(), 0u);
  }
}

// flashinfer-ai/flashinfer#3904: a replay uses the lengths of the capture.
TEST_P(Device, flashinfer_3904) {
  DeviceCall call(Type::bf16, kMiddling, true);
  const DeviceBytes used(2 * sizeof(int32_t));
  call.a.flags = TW_DETERMINISTIC | TW_CAUSAL;
  call.a.seqused_k = tw_tensor_of(used.data(), TW_I32, 2, 1, 1, 1);
  CUDA_OK(cudaMemset(used.data(), 0, used.size()));
  RUN_OR_SKIP(call.plan(false));
  RUN_OR_SKIP(call.plan(true));
  const Stream stream;
  Graph graph;
  ASSERT_NO_FATAL_FAILURE(capture(call, stream.stream, graph));
  for (const int32_t length : {10, 400}) {
    const int32_t lengths[] = {length, length + 20};
    CUDA_OK(cudaMemcpy(used.data(), lengths, sizeof lengths, cudaMemcpyDefault));
    CUDA_OK(cudaGraphLaunch(graph.graph, stream.stream));
    CUDA_OK(cudaDeviceSynchronize());
    const Kept forward(call, false), backward(call, true);
    RUN_OR_SKIP(call.plan_and_run(false));
    RUN_OR_SKIP(call.plan_and_run(true));
    forward.compare(nullptr), backward.compare(nullptr);
    EXPECT_EQ(forward.differences(), 0u);
    EXPECT_EQ(backward.differences(), 0u);
  }
}

// The device reads seed and offset when the graph runs, so each replay may drop other pairs, and what it reads may have
// been written just before: Dao-AILab/flash-attention#165 and pytorch/pytorch#196586.
TEST_P(Device, AGraphReadsItsDropoutState) {
  DeviceCall call(Type::bf16, kMiddling, true), direct(Type::bf16, kMiddling, true);
  const DeviceBytes state(2 * sizeof(int64_t));
  call.a.flags = direct.a.flags = TW_DETERMINISTIC;
  call.a.dropout_p = direct.a.dropout_p = 0.25f;
  call.a.dropout_offset = 5;
  call.a.dropout_state = tw_tensor_of(state.data(), TW_I64, 2, 1, 1, 1);
  RUN_OR_SKIP(call.plan(false));
  RUN_OR_SKIP(call.plan(true));
  const Stream stream;
  Graph graph;
  ASSERT_NO_FATAL_FAILURE(capture(call, stream.stream, graph));
  for (const int64_t offset : {1, 2}) {
    const int64_t seed_and_offset[] = {-77, offset};
    direct.a.dropout_seed = static_cast<uint64_t>(seed_and_offset[0]);
    direct.a.dropout_offset = static_cast<uint64_t>(5 + offset);
    RUN_OR_SKIP(direct.plan_and_run(false));
    RUN_OR_SKIP(direct.plan_and_run(true));
    CUDA_OK(cudaMemset(state.data(), 0, state.size()));
    keep_busy(1000, 1000000, stream.stream);
    CUDA_OK(cudaMemcpyAsync(state.data(), seed_and_offset, sizeof seed_and_offset, cudaMemcpyDefault, stream.stream));
    CUDA_OK(cudaGraphLaunch(graph.graph, stream.stream));
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(call.out.read(), direct.out.read());
    EXPECT_EQ(call.dq.read(), direct.dq.read());
    EXPECT_EQ(call.dv.read(), direct.dv.read());
  }
}

// ---- Bad input: a named error, outputs as they were, and the GPU still works.

void expect_refused(const char* what, tw_status code, const char* word,
                    const std::function<void(DeviceCall&, tw_exec&)>& spoil) {
  SCOPED_TRACE(what);
  DeviceCall call(Type::bf16, {.batch = 1, .rows = 70, .keys = 90, .heads = 2, .heads_kv = 2}, true);
  RUN_OR_SKIP(call.plan_and_run(false));
  RUN_OR_SKIP(call.plan(true));
  for (const bool backward : {false, true}) {
    for (const DeviceBytes* result : call.results(backward)) result->poison();
    const DeviceCall& before = call;
    const tw_attention a = before.a;
    tw_exec exec;
    TW_INIT(exec);
    exec.workspace = call.workspaces[backward].data();
    exec.workspace_bytes = call.plans[backward].workspace_bytes;
    spoil(call, exec);
    const tw_status status = tw_attention_run(&call.plans[backward], &call.a, backward ? &call.g : nullptr, &exec);
    if (code != TW_WORKSPACE_TOO_SMALL || call.plans[backward].workspace_bytes > 0) {
      EXPECT_EQ(status, code);
      EXPECT_NE(std::string(tw_last_error()).find(word), std::string::npos) << tw_last_error();
      CUDA_OK(cudaDeviceSynchronize());
      for (const DeviceBytes* result : call.results(backward)) {
        const std::vector<char> bytes = result->read();
        EXPECT_EQ(std::count(bytes.begin(), bytes.end(), '\xff'), static_cast<int64_t>(bytes.size()));
      }
    }
    call.a = a;
    RUN_OR_SKIP(call.plan_and_run(false));
  }
}

TEST_P(Device, BadInputIsRefusedByName) {
  std::vector<char> host(70 * 2 * 64 * 2);
  int reads_host = 0;
  CUDA_OK(cudaDeviceGetAttribute(&reads_host, cudaDevAttrPageableMemoryAccess, 0));
  if (!reads_host) {
    expect_refused("memory of the host", TW_INVALID_ARGUMENT, "q.data",
                   [&](DeviceCall& call, tw_exec&) { call.a.q.data = host.data(); });
  }
  expect_refused("misaligned to its element", TW_INVALID_ARGUMENT, "k.data",
                 [](DeviceCall& call, tw_exec&) { call.a.k.data = static_cast<char*>(call.a.k.data) + 1; });
  expect_refused("no such GPU", TW_PLAN_MISMATCH, "device_index",
                 [](DeviceCall& call, tw_exec&) { call.a.device_index = 99; });
  expect_refused("a workspace too small", TW_WORKSPACE_TOO_SMALL, "workspace_bytes",
                 [](DeviceCall&, tw_exec& exec) { exec.workspace_bytes -= exec.workspace_bytes > 0; });
}

// ---- Another GPU than the current one.

bool has_two_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count >= 2;
}

struct OnSecondGpu {
  OnSecondGpu() { EXPECT_EQ(cudaSetDevice(1), cudaSuccess); }
  ~OnSecondGpu() { (void)cudaSetDevice(0); }
  OnSecondGpu(const OnSecondGpu&) = delete;
  OnSecondGpu& operator=(const OnSecondGpu&) = delete;
};

// A call of the second GPU, its plans and the memory for them.
struct SecondCall : DeviceCall {
  SecondCall() : DeviceCall(Type::bf16, kMiddling, true) {
    a.device_index = 1;
    a.flags = TW_DETERMINISTIC;
  }
};

void expect_current(int gpu) {
  int current = -1;
  CUDA_OK(cudaGetDevice(&current));
  EXPECT_EQ(current, gpu);
}

TEST_P(Device, OneThatIsNotCurrent) {
  if (!has_two_gpus()) GTEST_SKIP() << "needs two GPUs";
  DeviceCall first(Type::bf16, kMiddling, true);
  first.a.flags = TW_DETERMINISTIC;
  RUN_OR_SKIP(first.plan_and_run(false));
  RUN_OR_SKIP(first.plan_and_run(true));
  std::optional<OnSecondGpu> on_second(std::in_place);
  SecondCall second;
  const Stream stream;
  RUN_OR_SKIP(second.plan_and_run(false));
  RUN_OR_SKIP(second.plan_and_run(true));
  for (const bool backward : {false, true})
    for (const DeviceBytes* result : second.results(backward)) result->poison();
  CUDA_OK(cudaDeviceSynchronize());
  on_second.reset();

  tw_exec exec;
  TW_INIT(exec);
  for (const bool backward : {false, true}) {
    const tw_attention_grad* grad = backward ? &second.g : nullptr;
    tw_plan plan;
    EXPECT_EQ(tw_attention_plan(&second.a, grad, &plan), TW_OK) << tw_last_error();
    exec.stream = stream.stream;
    exec.workspace = second.workspaces[backward].data();
    exec.workspace_bytes = second.workspaces[backward].size();
    EXPECT_EQ(tw_attention_run(&plan, &second.a, grad, &exec), TW_OK) << tw_last_error();
    expect_current(0);
    EXPECT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);
    for (size_t i = 0; i < first.results(backward).size(); ++i) {
      EXPECT_EQ(second.results(backward)[i]->read(), first.results(backward)[i]->read());
    }
  }
  exec.workspace = nullptr, exec.workspace_bytes = 0;
  on_second.emplace();
  second.out.poison();
  CUDA_OK(cudaDeviceSynchronize());
  on_second.reset();
  EXPECT_EQ(tw_attention_forward(&second.a, &exec), TW_OK) << tw_last_error();
  expect_current(0);
  EXPECT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);
  EXPECT_EQ(second.out.read(), first.out.read());

  second.a.q.data = first.q.data();
  EXPECT_EQ(tw_attention_forward(&second.a, &exec), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "q.data is memory of GPU 0, but device_index is 1");
  second.a.q.data = second.q.data();
  const Stream of_first;
  exec.stream = of_first.stream;
  const std::string refusal = "exec.stream is a stream of GPU 0, but device_index is 1";
  EXPECT_EQ(tw_attention_forward(&second.a, &exec), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_last_error(), refusal);
  EXPECT_EQ(tw_attention_backward(&second.a, &second.g, &exec), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_last_error(), refusal);
  expect_current(0);
  for (void* any : {static_cast<void*>(cudaStreamLegacy), static_cast<void*>(cudaStreamPerThread)}) {
    exec.stream = any;
    EXPECT_EQ(tw_attention_forward(&second.a, &exec), TW_OK) << tw_last_error();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// Half a gigabyte of a GPU that the call has nothing to do with.
TEST(Gpus, ACallLeavesNoContextOnAnother) {
  if (!has_two_gpus()) GTEST_SKIP() << "needs two GPUs";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  CUDA_OK(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &found));
  const auto has_context = [&](int gpu) {
    unsigned flags = 0;
    int active = -1;
    EXPECT_EQ(reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function)(gpu, &flags, &active), CUDA_SUCCESS);
    return active != 0;
  };
  if (has_context(0)) GTEST_SKIP() << "an earlier test has used GPU 0: this one comes first, or alone";
  const OnSecondGpu on_second;
  SecondCall call;
  tw_exec exec;
  TW_INIT(exec);
  std::thread([&] {  // where no GPU has been made current
    EXPECT_EQ(tw_attention_forward(&call.a, &exec), TW_OK) << tw_last_error();
    EXPECT_EQ(tw_attention_backward(&call.a, &call.g, &exec), TW_OK) << tw_last_error();
    expect_current(0);
  })
      .join();
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_TRUE(has_context(1));
  EXPECT_FALSE(has_context(0));
}

TEST(Gpus, OneThatIsNotThereIsRefusedByItsNumber) {
  DeviceCall call(Type::bf16, {.rows = 7, .keys = 9}, false);
  call.a.device_index = 99;
  EXPECT_EQ(tw_attention_forward(&call.a, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("device_index is 99"), std::string::npos) << tw_last_error();
}

// ---- Bad numbers in device memory: a fault is recorded, and nothing outside the tensors is written.

void expect_fault(const cases::Case& c, const std::function<void(cases::CaseData&)>& spoil, const char* kernel) {
  SCOPED_TRACE(c.name());
  cases::CaseData data(c);
  spoil(data);
  cases::Outputs forward = data.outputs();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    Plan plan;
    const cases::Outputs outputs = pass == Pass::forward ? forward : backward_outputs(data, forward);
    const Status status = run_case(data, pass, {.kernel = kernel, .device_type = TW_CUDA},
                                   pass == Pass::forward ? forward : outputs, plan);
    if (status.code == TW_UNSUPPORTED) continue;
    EXPECT_EQ(status.code, TW_INVALID_ARGUMENT) << status.message.chars;
    EXPECT_EQ(std::string(status.message.chars).substr(0, 5), "fault") << status.message.chars;
  }
}

TEST_P(Device, BadNumbersLeadNowhere) {
  cases::Case c;
  c.batch = 5, c.heads = 4, c.heads_kv = 2, c.type = Type::bf16, c.head_dim = c.value_dim = 64;
  c.packed_q = {40, 0, 130, 1, 60}, c.packed_k = {100, 3, 200, 1, 5};
  c.seqlen_q = 130, c.seqlen_k = 200;
  const std::vector<int64_t> wild = {INT32_MIN, -1, 7, 1 << 20, INT32_MAX, 0};
  const auto spoil = [&](cases::Stored& numbers, int64_t shift) {
    numbers.each([&](int64_t i, int64_t, int64_t, int64_t) {
      numbers.set(static_cast<double>(wild[static_cast<size_t>(i + shift) % wild.size()]), i);
    });
  };
  for (const bool causal : {false, true}) {
    c.causal = causal;
    for (int64_t shift = 0; shift < 6; ++shift) {
      SCOPED_TRACE(shift);
      expect_fault(
          c, [&](cases::CaseData& data) { spoil(data.cu_seqlens_q, shift); }, GetParam().c_str());
      expect_fault(
          c, [&](cases::CaseData& data) { spoil(data.cu_seqlens_k, shift); }, GetParam().c_str());
      cases::Case dense = c;
      dense.packed_q = dense.packed_k = {};
      dense.used_q = dense.used_k = dense.left_pad = {1, 2, 3, 4, 5};
      expect_fault(
          dense, [&](cases::CaseData& data) { spoil(data.used_q, shift); }, GetParam().c_str());
      expect_fault(
          dense, [&](cases::CaseData& data) { spoil(data.used_k, shift); }, GetParam().c_str());
      expect_fault(
          dense, [&](cases::CaseData& data) { spoil(data.left_pad, shift); }, GetParam().c_str());
      dense.left_pad = {}, dense.batch_index = {1, 0, 2, 4, 3}, dense.backward = false;
      expect_fault(
          dense, [&](cases::CaseData& data) { spoil(data.batch_index, shift); }, GetParam().c_str());
    }
  }
}

}  // namespace
}  // namespace tilewise::gpu

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const tilewise::Status status = tilewise::check_gpu(0); !status.ok() && !GTEST_FLAG_GET(list_tests)) {
    std::printf("skipped: %s\n", status.message.chars);
    return EXIT_SUCCESS;
  }
  return RUN_ALL_TESTS();
}
