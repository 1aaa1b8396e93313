#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/kernel.h"
#include "gpu/device_call.h"

namespace tilewise::gpu {
namespace {

constexpr int kThreads = 256, kBlocks = 1024;

template <class E>
__global__ void fill_elements(E* data, int64_t count, uint64_t tensor) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    data[i] = static_cast<E>(static_cast<float>(value_at(tensor, i)));
  }
}

__global__ void compare_bytes(const char* x, const char* y, int64_t count, unsigned long long* differences) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (x[i] != y[i]) atomicAdd(differences, 1);
  }
}

__global__ void spin(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

}  // namespace

DeviceBytes::DeviceBytes(size_t bytes) : bytes_(bytes) {
  if (cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(bytes, 1)) == cudaSuccess) return;
  (void)cudaGetLastError();
  data_ = nullptr;
}

DeviceBytes& DeviceBytes::operator=(DeviceBytes&& from) noexcept {
  std::swap(data_, from.data_);
  std::swap(bytes_, from.bytes_);
  return *this;
}

DeviceBytes::~DeviceBytes() { (void)cudaFree(data_); }

void DeviceBytes::poison(cudaStream_t stream) const {
  EXPECT_EQ(cudaMemsetAsync(data_, 0xff, bytes_, stream), cudaSuccess);
}

std::vector<char> DeviceBytes::read() const {
  std::vector<char> bytes(bytes_);
  (void)cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDefault);
  return bytes;
}

void fill(const DeviceBytes& memory, Type type, uint64_t tensor, cudaStream_t stream) {
  const auto count = static_cast<int64_t>(memory.size()) / size_of(type);
  if (type == Type::f16) {
    fill_elements<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<__half*>(memory.data()), count, tensor);
  } else if (type == Type::bf16) {
    fill_elements<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(memory.data()), count, tensor);
  } else {
    fill_elements<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<float*>(memory.data()), count, tensor);
  }
}

void count_differences(const DeviceBytes& x, const DeviceBytes& y, unsigned long long* count, cudaStream_t stream) {
  compare_bytes<<<kBlocks, kThreads, 0, stream>>>(x.data(), y.data(), static_cast<int64_t>(x.size()), count);
}

void keep_busy(int blocks, int64_t cycles, cudaStream_t stream) { spin<<<blocks, kThreads, 0, stream>>>(cycles); }

// ---- The call.

DeviceCall::DeviceCall(Type of, Sizes s, bool with_gradients) : type(of), sizes(s) {
  TW_INIT(a);
  TW_INIT(g);
  a.device_type = TW_CUDA;
  const auto tensor = [&](DeviceBytes& memory, int64_t tokens, int64_t heads) {
    memory = DeviceBytes(static_cast<size_t>(s.batch * tokens * heads * s.dim * size_of(type)));
    return tw_tensor_of(memory.data(), static_cast<int32_t>(type), s.batch, tokens, heads, s.dim);
  };
  a.q = tensor(q, s.rows, s.heads), a.out = tensor(out, s.rows, s.heads);
  a.k = tensor(k, s.keys, s.heads_kv), a.v = tensor(v, s.keys, s.heads_kv);
  lse = DeviceBytes(static_cast<size_t>(s.batch * s.heads * s.rows * 4));
  a.lse = tw_tensor_of(lse.data(), TW_F32, s.batch, s.heads, s.rows, 1);
  if (with_gradients) {
    g.dout = tensor(dout, s.rows, s.heads), g.dq = tensor(dq, s.rows, s.heads);
    g.dk = tensor(dk, s.keys, s.heads_kv), g.dv = tensor(dv, s.keys, s.heads_kv);
  }
  if (!has_memory()) return;
  fill(q, type, kQ), fill(k, type, kK), fill(v, type, kV);
  if (with_gradients) fill(dout, type, kDout);
}

bool DeviceCall::has_memory() const {
  const auto has = [](const tw_tensor& t) { return t.dtype == TW_NONE || t.data; };
  return has(a.q) && has(a.k) && has(a.v) && has(a.out) && has(a.lse) && has(g.dout) && has(g.dq) && has(g.dk) &&
         has(g.dv);
}

std::vector<const DeviceBytes*> DeviceCall::results(bool backward) const {
  if (backward) return {&dq, &dk, &dv};
  return {&out, &lse};
}

namespace {

Status status_of(tw_status code) { return code == TW_OK ? Status{} : failure(code, "%s", tw_last_error()); }

}  // namespace

Status DeviceCall::plan(bool backward) {
  tw_plan& plan = plans[backward];
  const Status status = status_of(tw_attention_plan(&a, backward ? &g : nullptr, &plan));
  if (status.ok() && workspaces[backward].size() < plan.workspace_bytes) {
    workspaces[backward] = DeviceBytes(plan.workspace_bytes);
  }
  return status;
}

Status DeviceCall::run(bool backward, cudaStream_t stream) {
  for (const DeviceBytes* result : results(backward)) result->poison(stream);
  workspaces[backward].poison(stream);
  tw_exec exec;
  TW_INIT(exec);
  exec.stream = stream;
  exec.workspace = workspaces[backward].data();
  exec.workspace_bytes = workspaces[backward].size();
  return status_of(tw_attention_run(&plans[backward], &a, backward ? &g : nullptr, &exec));
}

Status DeviceCall::plan_and_run(bool backward) {
  Status status = plan(backward);
  if (status.ok()) status = run(backward);
  if (status.ok() && cudaDeviceSynchronize() != cudaSuccess) status = failure(TW_DEVICE_ERROR, "the kernel failed");
  return status;
}

Status both_passes(DeviceCall& call) {
  Status status = call.plan_and_run(false);
  if (status.ok()) status = call.plan_and_run(true);
  return status;
}

std::vector<const DeviceBytes*> all_results(const DeviceCall& call) {
  return {&call.out, &call.lse, &call.dq, &call.dk, &call.dv};
}

std::vector<std::vector<char>> read_results(const DeviceCall& call) {
  std::vector<std::vector<char>> bytes;
  for (const DeviceBytes* result : all_results(call)) bytes.push_back(result->read());
  return bytes;
}

std::vector<double> read(const DeviceBytes& tensor, Type type, int64_t first, int64_t count) {
  const int64_t size = size_of(type);
  std::vector<char> bytes(static_cast<size_t>(count * size));
  (void)cudaMemcpy(bytes.data(), tensor.data() + first * size, bytes.size(), cudaMemcpyDefault);
  std::vector<double> values;
  for (const char* at = bytes.data(); at < bytes.data() + bytes.size(); at += size) {
    if (type == Type::f16) {
      values.push_back(__half2float(*reinterpret_cast<const __half*>(at)));
    } else if (type == Type::bf16) {
      values.push_back(__bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(at)));
    } else {
      values.push_back(*reinterpret_cast<const float*>(at));
    }
  }
  return values;
}

// ---- The families.

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const Kernel* kernel : kernels(TW_CUDA)) {
    const std::string_view name = kernel->name;
    if (kernel->pass == Pass::forward) names.emplace_back(name.substr(0, name.rfind('.')));
  }
  return names;
}

void EveryFamily::SetUp() { setenv("TILEWISE_FORCE_KERNEL", GetParam().c_str(), 1); }
void EveryFamily::TearDown() { unsetenv("TILEWISE_FORCE_KERNEL"); }

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

}  // namespace tilewise::gpu
