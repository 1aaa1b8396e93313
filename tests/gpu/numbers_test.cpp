// Bad numbers in device memory: whatever they are, every kernel ends, and nothing outside the tensors is touched.
#include <cmath>
#include <limits>

#include "gpu/device_call.h"

namespace tilewise::gpu {
namespace {

class Numbers : public EveryFamily {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Numbers);
INSTANTIATE_TEST_SUITE_P(Gpu, Numbers, testing::ValuesIn(families()), test_name);

// Sequences that overlap may spoil each other's rows, but none waits for the other for ever. To v1, whose thread blocks
// come back to what they leave in the workspace, a token is that of one sequence: its bits are the same each time.
TEST_P(Numbers, SequencesThatOverlapEnd) {
  DeviceCall call(Type::bf16, {.batch = 1, .rows = 640, .keys = 640, .heads = 2, .heads_kv = 1, .dim = 64}, true);
  const int32_t offsets[] = {0, 640, 100, 640, 30, 500, 0, 640, 640};
  const DeviceBytes numbers(sizeof offsets);
  CUDA_OK(cudaMemcpy(numbers.data(), offsets, sizeof offsets, cudaMemcpyDefault));
  call.a.cu_seqlens_q = call.a.cu_seqlens_k = tw_tensor_of(numbers.data(), TW_I32, 9, 1, 1, 1);
  for (const uint32_t flags : {0, TW_CAUSAL + 0, TW_DETERMINISTIC + 0, TW_DETERMINISTIC | TW_CAUSAL}) {
    for (const int64_t window : {0, 50}) {
      call.a.flags = flags | (window > 0 ? TW_WINDOW_LEFT : 0);
      call.a.window_left = window;
      RUN_OR_SKIP(both_passes(call));
      const auto expected = read_results(call);
      RUN_OR_SKIP(both_passes(call));
      if (GetParam() == "cuda.v1") EXPECT_TRUE(read_results(call) == expected);
    }
  }
}

// Offsets of any numbers, in any order.
TEST_P(Numbers, OffsetsOfAnyNumbersEnd) {
  constexpr int64_t kTokens = 320, kSequences = 12;
  for (const Type type : {Type::bf16, Type::f32}) {
    DeviceCall call(type, {.batch = 1, .rows = kTokens, .keys = kTokens, .heads = 4, .heads_kv = 2, .dim = 64}, true);
    const DeviceBytes rows((kSequences + 1) * 4), keys((kSequences + 1) * 4), bias(kTokens * 4), dbias(kTokens * 4);
    CUDA_OK(cudaMemset(bias.data(), 0, bias.size()));
    call.a.cu_seqlens_q = tw_tensor_of(rows.data(), TW_I32, kSequences + 1, 1, 1, 1);
    call.a.cu_seqlens_k = tw_tensor_of(keys.data(), TW_I32, kSequences + 1, 1, 1, 1);
    if (call.plan(false).code == TW_UNSUPPORTED) continue;  // v1 serves 16 bits
    for (int draw = 0; draw < 32; ++draw) {
      SCOPED_TRACE(testing::Message() << name_of(type) << ", draw " << draw);
      const auto fill_in = [&](const DeviceBytes& offsets, uint64_t table) {
        int32_t host[kSequences + 1];
        for (int64_t i = 0; i <= kSequences; ++i) {
          const double x = value_at(table, draw * 100 + i);
          host[i] = x == 1 ? INT32_MAX : x == -1 ? INT32_MIN : static_cast<int32_t>((x + 0.5) * kTokens);
        }
        return cudaMemcpy(offsets.data(), host, sizeof host, cudaMemcpyDefault);
      };
      CUDA_OK(fill_in(rows, 21));
      CUDA_OK(fill_in(keys, draw % 3 == 0 ? 21 : 22));
      call.a.flags = (draw % 2 ? TW_CAUSAL : 0) | (draw % 8 < 4 ? TW_DETERMINISTIC : 0);
      const bool has_bias = draw % 4 > 1 && GetParam() != "cuda.v1";
      call.a.bias = has_bias ? tw_tensor_of(bias.data(), TW_F32, 1, 1, 1, kTokens) : tw_tensor{};
      call.g.dbias = has_bias ? tw_tensor_of(dbias.data(), TW_F32, 1, 1, 1, kTokens) : tw_tensor{};
      RUN_OR_SKIP(both_passes(call));
      if (GetParam() != "cuda.v1") continue;
      const auto expected = read_results(call);
      RUN_OR_SKIP(both_passes(call));
      ASSERT_TRUE(read_results(call) == expected);
      for (const DeviceBytes* x : {&call.out, &call.dq, &call.dk, &call.dv}) {
        for (const double number : read(*x, type, 0, static_cast<int64_t>(x->size()) / 2)) {
          ASSERT_TRUE(std::isfinite(number)) << "a token is nobody's";
        }
      }
    }
  }
}

// Intervals, positions and the state of dropout may be any numbers.
TEST_P(Numbers, IntervalsAndPositionsOfAnySizeLeadNowhere) {
  DeviceCall call(Type::bf16, kSmall, true);
  const int32_t wild[] = {INT32_MIN, -1, 7, 1 << 20, INT32_MAX, 0, 89, 90};
  std::vector<int32_t> host(2 * 4 * 90);
  const DeviceBytes numbers[2] = {DeviceBytes(host.size() * 4), DeviceBytes(host.size() * 4)};
  const auto refill = [&](int memory, size_t shift) {
    for (size_t i = 0; i < host.size(); ++i) host[i] = wild[(i + shift) % 8];
    return cudaMemcpy(numbers[memory].data(), host.data(), host.size() * 4, cudaMemcpyDefault);
  };
  const auto numbers_of = [&](int memory, int64_t n0, int64_t n1, int64_t n2) {
    return tw_tensor_of(numbers[memory].data(), TW_I32, n0, n1, n2, 1);
  };
  const std::function<void()> options[] = {
      [&] { call.a.key_begin = numbers_of(0, 2, 4, 70), call.a.key_end = numbers_of(1, 2, 4, 70); },
      [&] { call.a.q_positions = numbers_of(0, 2, 70, 1), call.a.k_positions = numbers_of(1, 2, 90, 1); },
      [&] {
        call.a.dropout_p = 0.999f;
        call.a.dropout_state = tw_tensor_of(numbers[0].data(), TW_I64, 2, 1, 1, 1);
      },
  };
  const tw_attention plain = call.a;
  for (const auto& option : options) {
    for (size_t shift = 0; shift < 8; ++shift) {
      for (const uint32_t flags : {0, TW_CAUSAL | TW_WINDOW_LEFT}) {
        call.a = plain;
        call.a.flags = flags;
        CUDA_OK(refill(0, shift));
        CUDA_OK(refill(1, shift * 3));
        option();
        RUN_OR_SKIP(both_passes(call));
        for (const double x : read(call.out, call.type, 0, 2 * 70 * 4 * 64)) ASSERT_TRUE(std::isfinite(x));
      }
    }
  }
}

// A sink that is NaN, or a logit that is too large to be one, makes NaN of its head and of no other.
TEST_P(Numbers, ASinkThatIsNoNumberReachesItsHead) {
  DeviceCall call(Type::bf16, kSquare, true);
  call.a.flags = TW_CAUSAL;
  const DeviceBytes sink(3 * sizeof(float));
  call.a.sink = tw_tensor_of(sink.data(), TW_F32, 3, 1, 1, 1);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(bad);
    const float sinks[] = {0.5f, bad, -std::numeric_limits<float>::infinity()};
    CUDA_OK(cudaMemcpy(sink.data(), sinks, sizeof sinks, cudaMemcpyDefault));
    RUN_OR_SKIP(both_passes(call));
    for (int64_t i = 0; i < 90; ++i) {
      for (int64_t h = 0; h < 3; ++h) {
        const double x = read(call.out, call.type, (i * 3 + h) * 64 + 7, 1)[0];
        const double lse = read(call.lse, Type::f32, h * 90 + i, 1)[0];
        ASSERT_EQ(std::isnan(x), h == 1) << "row " << i << ", head " << h;
        ASSERT_EQ(std::isnan(lse), h == 1) << "row " << i << ", head " << h;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::gpu
