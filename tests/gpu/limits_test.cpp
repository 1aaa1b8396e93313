// Calls at and beyond the limits of what a call may be: each bad argument is refused by its name, before anything is
// written, and leaves no error behind in CUDA; each legal extreme gives what the plain call gives.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "gpu/device_call.h"

namespace tilewise::gpu {
namespace {

class Limits : public EveryFamily {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Limits);
INSTANTIATE_TEST_SUITE_P(Gpu, Limits, testing::ValuesIn(families()), test_name);

// ---- What is refused.

void expect_refused(const char* name, const std::vector<std::string>& words, tw_status status, const DeviceCall& call) {
  SCOPED_TRACE(name);
  EXPECT_EQ(status, TW_INVALID_ARGUMENT);
  for (const std::string& word : words) {
    EXPECT_NE(std::string(tw_last_error()).find(word), std::string::npos) << word << "\n" << tw_last_error();
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  CUDA_OK(cudaDeviceSynchronize());
  for (const std::vector<char>& bytes : read_results(call)) {
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), '\xff'), static_cast<int64_t>(bytes.size()));
  }
}

// A call that has run once and whose results are poison again, so that any write shows.
struct Spoiled {
  DeviceCall call{Type::bf16, kSmall, true};
  tw_exec exec;

  Status prepare() {
    Status status = both_passes(call);
    for (const DeviceBytes* result : all_results(call)) result->poison();
    return status;
  }
  void reset_exec(bool backward) {
    TW_INIT(exec);
    exec.workspace = call.workspaces[backward].data();
    exec.workspace_bytes = call.plans[backward].workspace_bytes;
  }
  tw_status run(bool backward) {
    return tw_attention_run(&call.plans[backward], &call.a, backward ? &call.g : nullptr, &exec);
  }
};

bool reads_host() {
  int value = 0;
  return cudaDeviceGetAttribute(&value, cudaDevAttrPageableMemoryAccess, 0) == cudaSuccess && value;
}

TEST_P(Limits, EveryBadPointerIsRefusedByItsName) {
  Spoiled spoiled;
  RUN_OR_SKIP(spoiled.prepare());
  tw_attention& a = spoiled.call.a;
  tw_attention_grad& g = spoiled.call.g;
  const struct {
    const char* name;
    tw_tensor& tensor;
    bool forward;
  } tensors[] = {{"q", a.q, true},     {"k", a.k, true},     {"v", a.v, true},
                 {"out", a.out, true}, {"lse", a.lse, true}, {"dout", g.dout, false},
                 {"dq", g.dq, false},  {"dk", g.dk, false},  {"dv", g.dv, false}};
  std::vector<char> host(spoiled.call.q.size() + spoiled.call.k.size());
  for (const auto& [name, tensor, forward] : tensors) {
    const std::string data = std::string(name) + ".data";
    char* const good = static_cast<char*>(tensor.data);
    for (const bool backward : {false, true}) {
      if (!backward && !forward) continue;
      std::vector<char*> bad = {nullptr, good + 1};
      if (!reads_host()) bad.push_back(host.data());
      for (char* pointer : bad) {
        tensor.data = pointer;
        spoiled.reset_exec(backward);
        const tw_status status = spoiled.run(backward);
        tensor.data = good;
        ASSERT_NO_FATAL_FAILURE(expect_refused(name, {data}, status, spoiled.call));
      }
    }
  }
  RUN_OR_SKIP(both_passes(spoiled.call));
}

TEST_P(Limits, BadExecIsRefusedByItsName) {
  Spoiled spoiled;
  RUN_OR_SKIP(spoiled.prepare());
  const DeviceBytes fault(2 * sizeof(tw_fault));
  std::vector<char> host(4096);
  for (const bool backward : {false, true}) {
    spoiled.reset_exec(backward);
    spoiled.exec.fault = reinterpret_cast<tw_fault*>(fault.data() + 1);
    ASSERT_NO_FATAL_FAILURE(expect_refused("fault", {"exec.fault is", "aligned"}, spoiled.run(backward), spoiled.call));
    if (!reads_host()) {
      spoiled.exec.fault = reinterpret_cast<tw_fault*>(host.data());
      ASSERT_NO_FATAL_FAILURE(expect_refused("fault", {"exec.fault is"}, spoiled.run(backward), spoiled.call));
    }
    if (spoiled.call.plans[backward].workspace_bytes == 0) continue;
    char* const good = spoiled.call.workspaces[backward].data();
    const struct {
      void* pointer;
      std::vector<std::string> words;
    } workspaces[] = {
        {nullptr, {"exec.workspace is NULL"}},
        {good + 128, {"exec.workspace is", "aligned to 256"}},
        {backward ? spoiled.call.dk.data() : spoiled.call.out.data(), {"exec.workspace shares memory with"}},
        {spoiled.call.k.data(), {"exec.workspace shares memory with"}},
    };
    for (const auto& [pointer, words] : workspaces) {
      spoiled.reset_exec(backward);
      spoiled.exec.workspace = pointer;
      ASSERT_NO_FATAL_FAILURE(expect_refused("workspace", words, spoiled.run(backward), spoiled.call));
    }
    if (reads_host()) continue;
    std::vector<char> large(spoiled.exec.workspace_bytes + 256);
    spoiled.reset_exec(backward);
    spoiled.exec.workspace = large.data() + (256 - reinterpret_cast<uintptr_t>(large.data()) % 256);
    ASSERT_NO_FATAL_FAILURE(expect_refused("workspace", {"exec.workspace is"}, spoiled.run(backward), spoiled.call));
  }
  RUN_OR_SKIP(both_passes(spoiled.call));
}

tw_merge merge_of(const DeviceCall& parts, const DeviceCall& whole) {
  tw_merge merge;
  TW_INIT(merge);
  merge.device_type = TW_CUDA, merge.parts = parts.sizes.batch;
  merge.out_parts = parts.a.out, merge.lse_parts = parts.a.lse;
  merge.out_part_stride = merge.out_parts.stride[0], merge.lse_part_stride = merge.lse_parts.stride[0];
  merge.out_parts.shape[0] = merge.lse_parts.shape[0] = 1;
  merge.out = whole.a.out, merge.lse = whole.a.lse;
  return merge;
}

TEST(Merging, EveryBadPointerIsRefusedByItsName) {
  const DeviceCall parts(Type::f32, kSquare, false);
  const DeviceCall whole(Type::f32, {.rows = 90, .keys = 90, .heads = 3, .heads_kv = 3}, false);
  tw_merge merge = merge_of(parts, whole);
  whole.out.poison(), whole.lse.poison();
  std::vector<float> host(90 * 3 * 64 * 2);
  const struct {
    const char* name;
    tw_tensor& tensor;
  } tensors[] = {
      {"out_parts", merge.out_parts}, {"lse_parts", merge.lse_parts}, {"out", merge.out}, {"lse", merge.lse}};
  for (const auto& [name, tensor] : tensors) {
    char* const good = static_cast<char*>(tensor.data);
    std::vector<char*> bad = {nullptr, good + 2};
    if (!reads_host()) bad.push_back(reinterpret_cast<char*>(host.data()));
    for (char* pointer : bad) {
      tensor.data = pointer;
      const tw_status status = tw_attention_merge(&merge, nullptr);
      tensor.data = good;
      EXPECT_EQ(status, TW_INVALID_ARGUMENT);
      EXPECT_NE(std::string(tw_last_error()).find(std::string(name) + ".data"), std::string::npos) << tw_last_error();
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      CUDA_OK(cudaDeviceSynchronize());
    }
  }
  const std::vector<char> bytes = whole.out.read();
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), '\xff'), static_cast<int64_t>(bytes.size()));
}

TEST(Merging, AStreamOfAnotherGpuIsRefused) {
  int gpus = 0;
  CUDA_OK(cudaGetDeviceCount(&gpus));
  if (gpus < 2) GTEST_SKIP() << "needs two GPUs";
  const DeviceCall parts(Type::f32, kSquare, false);
  const DeviceCall whole(Type::f32, {.rows = 90, .keys = 90, .heads = 3, .heads_kv = 3}, false);
  const tw_merge merge = merge_of(parts, whole);
  tw_exec exec;
  TW_INIT(exec);
  CUDA_OK(cudaSetDevice(1));
  const Stream of_second;
  CUDA_OK(cudaSetDevice(0));
  exec.stream = of_second.stream;
  EXPECT_EQ(tw_attention_merge(&merge, &exec), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "exec.stream is a stream of GPU 1, but device_index is 0");
}

// ---- Legal extremes.

// Results of two calls with the same numbers, to rounding.
void expect_close(const DeviceCall& x, const DeviceCall& y) {
  const auto xs = all_results(x), ys = all_results(y);
  for (size_t i = 0; i < xs.size(); ++i) {
    const Type type = i == 1 ? Type::f32 : x.type;
    const auto count = static_cast<int64_t>(xs[i]->size()) / size_of(type);
    const std::vector<double> a = read(*xs[i], type, 0, count), b = read(*ys[i], type, 0, count);
    for (size_t j = 0; j < a.size(); ++j) ASSERT_NEAR(a[j], b[j], 0.05) << "element " << j << " of result " << i;
  }
}

TEST_P(Limits, WindowsAndChunksOfAnySizeAreNone) {
  DeviceCall none(Type::bf16, kSquare, true), wide(Type::bf16, kSquare, true);
  RUN_OR_SKIP(both_passes(none));
  for (const int64_t size : {int64_t{90}, int64_t{INT32_MAX}, int64_t{1} << 40, INT64_MAX - 1, INT64_MAX}) {
    SCOPED_TRACE(size);
    wide.a.flags = TW_WINDOW_LEFT | TW_WINDOW_RIGHT;
    wide.a.window_left = wide.a.window_right = wide.a.attention_chunk = size;
    RUN_OR_SKIP(both_passes(wide));
    expect_close(none, wide);
  }
}

TEST_P(Limits, ScalesOfAnySizeGiveNumbers) {
  DeviceCall call(Type::bf16, kSmall, true);
  call.a.flags = TW_SOFTMAX_SCALE | TW_CAUSAL;
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const float scale : {0.0f, -0.125f, 1e-38f, 1e-45f, 1e20f, -1e20f, kMost / 256, -kMost / 256}) {
    SCOPED_TRACE(scale);
    call.a.softmax_scale = scale;
    RUN_OR_SKIP(both_passes(call));
    for (const double x : read(call.out, call.type, 0, 2 * 70 * 4 * 64)) ASSERT_LE(std::abs(x), 1.0);
  }
}

// Whatever the scale, scores of queries of zeros are 0: out is a mean, and so are dV and dK what they are at scale 0.
TEST_P(Limits, QueriesOfZerosMeetAnyScale) {
  DeviceCall call(Type::bf16, kSmall, true);
  CUDA_OK(cudaMemset(call.q.data(), 0, call.q.size()));
  call.a.flags = TW_SOFTMAX_SCALE | TW_CAUSAL | TW_DETERMINISTIC;
  const auto values = [&] {
    std::vector<double> all;
    for (const DeviceBytes* x : {&call.out, &call.dv, &call.dk}) {
      const std::vector<double> some = read(*x, call.type, 0, static_cast<int64_t>(x->size()) / 2);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  };
  call.a.softmax_scale = 0;
  RUN_OR_SKIP(both_passes(call));
  const std::vector<double> expected = values();
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const float scale : {1e-45f, -1e-44f, 1e-38f, 1.0f, kMost / 2, kMost, -kMost}) {
    SCOPED_TRACE(scale);
    call.a.softmax_scale = scale;
    RUN_OR_SKIP(both_passes(call));
    const std::vector<double> got = values();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 0.01 * (1 + std::abs(expected[i])));
  }
}

// Axes that go backwards and axes that repeat are views like any other.
TEST_P(Limits, BackwardAndRepeatedAxesAreViews) {
  DeviceCall call(Type::bf16, kSquare, true);
  call.a.flags = TW_DETERMINISTIC;
  const size_t keys_of_one = call.k.size() / 2;
  for (const DeviceBytes* tensor : {&call.k, &call.v}) {
    CUDA_OK(cudaMemcpy(tensor->data() + keys_of_one, tensor->data(), keys_of_one, cudaMemcpyDefault));
  }
  RUN_OR_SKIP(both_passes(call));
  const auto expected = read_results(call);

  call.a.k.stride[0] = call.a.v.stride[0] = 0;
  RUN_OR_SKIP(both_passes(call));
  EXPECT_TRUE(read_results(call) == expected) << "repeated";
  call.a.k.stride[0] = call.a.v.stride[0] = call.g.dk.stride[0];

  const auto reverse = [](tw_tensor& t, int axis, int64_t size) {
    t.data = static_cast<char*>(t.data) + t.stride[axis] * (t.shape[axis] - 1) * size;
    t.stride[axis] = -t.stride[axis];
  };
  for (tw_tensor* t :
       {&call.a.q, &call.a.k, &call.a.v, &call.a.out, &call.g.dout, &call.g.dq, &call.g.dk, &call.g.dv}) {
    reverse(*t, 0, 2), reverse(*t, 2, 2);
  }
  reverse(call.a.lse, 0, 4), reverse(call.a.lse, 1, 4);
  RUN_OR_SKIP(both_passes(call));
  EXPECT_TRUE(read_results(call) == expected) << "backwards";
}

// Memory that the GPU addresses without owning it.
TEST_P(Limits, PinnedAndManagedMemoryServe) {
  DeviceCall call(Type::bf16, kSmall, true);
  call.a.flags = TW_DETERMINISTIC;
  RUN_OR_SKIP(both_passes(call));
  const auto expected = read_results(call);
  void *pinned = nullptr, *managed = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, call.q.size()));
  CUDA_OK(cudaMallocManaged(&managed, call.k.size()));
  CUDA_OK(cudaMemcpy(pinned, call.q.data(), call.q.size(), cudaMemcpyDefault));
  CUDA_OK(cudaMemcpy(managed, call.k.data(), call.k.size(), cudaMemcpyDefault));
  call.a.q.data = pinned, call.a.k.data = managed;
  RUN_OR_SKIP(both_passes(call));
  EXPECT_TRUE(read_results(call) == expected);
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(managed));
}

TEST_P(Limits, NoRowsKeysOrSequencesNeedNoMemory) {
  for (const Sizes sizes : {Sizes{0, 5, 7, 2, 1, 64}, Sizes{2, 0, 7, 2, 1, 64}, Sizes{2, 5, 0, 2, 1, 64}}) {
    DeviceCall call(Type::bf16, sizes, true);
    for (tw_tensor* t : {&call.a.q, &call.a.k, &call.a.v, &call.a.out, &call.a.lse, &call.g.dout, &call.g.dq,
                         &call.g.dk, &call.g.dv}) {
      if (t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0) t->data = nullptr;
    }
    RUN_OR_SKIP(both_passes(call));
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    for (const DeviceBytes* result : {&call.out, &call.dq, &call.dk, &call.dv}) {
      const std::vector<char> bytes = result->read();
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), static_cast<int64_t>(bytes.size()));
    }
    for (const double lse : read(call.lse, Type::f32, 0, static_cast<int64_t>(call.lse.size()) / 4)) {
      EXPECT_EQ(lse, -INFINITY);
    }
  }
}

// A NaN, of either sign, reaches every row that uses it (contract C2); an infinite value likewise.
TEST_P(Limits, WhatIsNotANumberReachesTheRowsThatUseIt) {
  constexpr int64_t kKey = 41, kElement = kKey * 3 * 64 + 5;  // of sequence 0, head 0
  for (const uint16_t bits : {0x7fc0, 0xffc0, 0x7f80, 0xff80}) {
    const bool is_nan = (bits & 0x7f) != 0;
    for (int which = 0; which < 3; ++which) {
      SCOPED_TRACE(testing::Message() << std::hex << bits << " in "
                                      << "qkv"[which]);
      if (which < 2 && !is_nan) continue;
      DeviceCall call(Type::bf16, kSquare, false);
      call.a.flags = TW_CAUSAL;
      char* const into = (which == 0 ? call.q : which == 1 ? call.k : call.v).data();
      CUDA_OK(cudaMemcpy(into + kElement * 2, &bits, 2, cudaMemcpyDefault));
      RUN_OR_SKIP(call.plan_and_run(false));
      for (int64_t i = kKey; i < (which == 0 ? kKey + 1 : 90); ++i) {
        const double x = read(call.out, call.type, i * 3 * 64 + 5, 1)[0], lse = read(call.lse, Type::f32, i, 1)[0];
        ASSERT_FALSE(std::isfinite(x)) << "row " << i;
        if (which < 2) ASSERT_TRUE(std::isnan(lse)) << "row " << i;
      }
      for (const double x : read(call.out, call.type, 90 * 3 * 64, 90 * 3 * 64)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

// Neighbouring keys of a mask lie together in memory in one of these calls, and not in the other.
TEST_P(Limits, AMaskGivesTheSameBitsInAnyBatch) {
  constexpr int64_t kKeys = 201;
  std::vector<char> masked(2 * kKeys), outs[2];
  for (size_t i = 0; i < masked.size(); ++i) masked[i] = i % 3 != 0;
  const DeviceBytes mask(masked.size());
  CUDA_OK(cudaMemcpy(mask.data(), masked.data(), masked.size(), cudaMemcpyDefault));
  for (const int64_t batch : {1, 2}) {
    DeviceCall call(Type::bf16, {.batch = batch, .rows = 70, .keys = kKeys, .heads = 4, .heads_kv = 2}, false);
    call.a.flags = TW_BATCH_INVARIANT;
    call.a.softcap = 2;
    call.a.mask = tw_tensor_of(mask.data(), TW_BOOL, batch, 1, 1, kKeys);
    RUN_OR_SKIP(call.plan_and_run(false));
    outs[batch - 1] = call.out.read();
  }
  outs[1].resize(outs[0].size());  // of the first sequence
  EXPECT_TRUE(outs[0] == outs[1]);
}

// ---- Every form of a call in a captured graph.

TEST_P(Limits, EveryFormOfACallCanBeCaptured) {
  DeviceCall call(Type::bf16, {.batch = 2, .rows = 90, .keys = 90, .heads = 2, .heads_kv = 2, .dim = 64}, true);
  call.a.flags = TW_DETERMINISTIC | TW_CAUSAL;
  const int32_t lengths[] = {80, 90};
  const DeviceBytes used(sizeof lengths), fault(sizeof(tw_fault));
  CUDA_OK(cudaMemcpy(used.data(), lengths, sizeof lengths, cudaMemcpyDefault));
  call.a.seqused_q = call.a.seqused_k = tw_tensor_of(used.data(), TW_I32, 2, 1, 1, 1);
  RUN_OR_SKIP(both_passes(call));
  const auto expected = read_results(call);
  const DeviceCall parts(Type::f32, kSquare, false);
  const DeviceCall whole(Type::f32, {.rows = 90, .keys = 90, .heads = 3, .heads_kv = 3}, false);
  CUDA_OK(cudaMemset(parts.out.data(), 0, parts.out.size()));
  CUDA_OK(cudaMemset(parts.lse.data(), 0, parts.lse.size()));
  CUDA_OK(cudaMemset(fault.data(), 0, fault.size()));
  const tw_merge merge = merge_of(parts, whole);
  const Stream own;
  const cudaStream_t stream = own.stream;
  tw_exec exec;
  TW_INIT(exec);
  exec.stream = stream, exec.fault = reinterpret_cast<tw_fault*>(fault.data());
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const tw_status forward = tw_attention_forward(&call.a, &exec);
  const tw_status backward = tw_attention_backward(&call.a, &call.g, &exec);
  exec.fault = nullptr;
  const tw_status merged = tw_attention_merge(&merge, &exec);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  EXPECT_EQ(forward, TW_OK);
  EXPECT_EQ(backward, TW_OK);
  EXPECT_EQ(merged, TW_OK) << tw_last_error();
  CUDA_OK(ended);
  CUDA_OK(cudaGraphInstantiate(&ready, graph, 0));
  for (const DeviceBytes* result : all_results(call)) result->poison();
  whole.out.poison();
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaGraphLaunch(ready, stream));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_TRUE(read_results(call) == expected);
  for (const double x : read(whole.out, Type::f32, 0, 90 * 3 * 64)) ASSERT_EQ(x, 0);
  CUDA_OK(cudaGraphExecDestroy(ready));
  CUDA_OK(cudaGraphDestroy(graph));
}

// ---- A GPU that its program has reset, and with it all memory: for a process of its own.

TEST(Reset, DISABLED_AOneShotCallServesAsBefore) {
  const auto one_shot = [](bool backward) {
    DeviceCall call(Type::bf16, kSquare, true);
    EXPECT_EQ(cudaMemset(call.out.data(), 0, call.out.size()), cudaSuccess);
    EXPECT_EQ(cudaMemset(call.lse.data(), 0, call.lse.size()), cudaSuccess);
    call.a.flags = TW_DETERMINISTIC;
    const tw_status status =
        backward ? tw_attention_backward(&call.a, &call.g, nullptr) : tw_attention_forward(&call.a, nullptr);
    EXPECT_EQ(status, TW_OK) << tw_last_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return (backward ? call.dk : call.out).read();
  };
  for (const bool backward : {false, true}) {
    SCOPED_TRACE(backward ? "backward" : "forward");
    const std::vector<char> before = one_shot(backward);
    CUDA_OK(cudaDeviceReset());
    EXPECT_TRUE(one_shot(backward) == before);
  }
}

}  // namespace
}  // namespace tilewise::gpu
