// DeviceCall: one call whose tensors are made in the memory of GPU 0, so that they may be larger than what a host
// could fill. An element is a function of its tensor and its index: any row can be worked out anew on the host.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "core/inline.h"
#include "core/problem.h"
#include "run_or_skip.h"

namespace tilewise::gpu {

// A multiple of 1/64 in [-1, 1]: exact in every type.
TILEWISE_INLINE static double value_at(uint64_t tensor, int64_t index) {
  uint64_t x = (static_cast<uint64_t>(index) + tensor * 0x632BE59BD9B4E019u) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return static_cast<double>(static_cast<int64_t>(x >> 57) - 64) / 64;
}

// One that waits for no default stream.
struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { (void)cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

// Bytes of GPU 0; null where there are not so many.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  explicit DeviceBytes(size_t bytes);
  DeviceBytes(DeviceBytes&& from) noexcept : data_(from.data_), bytes_(from.bytes_) { from.data_ = nullptr; }
  DeviceBytes& operator=(DeviceBytes&& from) noexcept;
  ~DeviceBytes();

  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  void poison(cudaStream_t stream = nullptr) const;  // NaN in every type
  std::vector<char> read() const;

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

enum TensorNumber : uint64_t { kQ = 1, kK, kV, kDout };

struct Sizes {
  int64_t batch = 1, rows = 1, keys = 1, heads = 1, heads_kv = 1, dim = 64;
};

inline constexpr Sizes kSmall = {.batch = 2, .rows = 70, .keys = 90, .heads = 4, .heads_kv = 2, .dim = 64};
inline constexpr Sizes kSquare = {.batch = 2, .rows = 90, .keys = 90, .heads = 3, .heads_kv = 3, .dim = 64};

struct DeviceCall {
  DeviceCall(Type type, Sizes sizes, bool with_gradients);
  bool has_memory() const;  // false: the GPU is too small

  // Results become NaN and are computed; the workspace too.
  Status plan(bool backward);
  Status run(bool backward, cudaStream_t stream = nullptr);
  Status plan_and_run(bool backward);

  std::vector<const DeviceBytes*> results(bool backward) const;

  Type type;
  Sizes sizes;
  DeviceBytes q, k, v, dout, out, lse, dq, dk, dv;
  tw_attention a;
  tw_attention_grad g;
  tw_plan plans[2];
  DeviceBytes workspaces[2];
};

Status both_passes(DeviceCall& call);
std::vector<const DeviceBytes*> all_results(const DeviceCall& call);
std::vector<std::vector<char>> read_results(const DeviceCall& call);

std::vector<double> read(const DeviceBytes& tensor, Type type, int64_t first, int64_t count);

// Elements of tensor number `tensor`, as value_at has them.
void fill(const DeviceBytes& memory, Type type, uint64_t tensor, cudaStream_t stream = nullptr);

// Adds the number of bytes that differ to *count, in device memory.
void count_differences(const DeviceBytes& x, const DeviceBytes& y, unsigned long long* count, cudaStream_t stream);

// Keeps so many multiprocessors busy for so long.
void keep_busy(int blocks, int64_t cycles, cudaStream_t stream);

// Every family of kernels of this build, and its kernels alone while a test runs.
std::vector<std::string> families();
class EveryFamily : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  void TearDown() override;
};
std::string test_name(const testing::TestParamInfo<std::string>& info);

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

}  // namespace tilewise::gpu
