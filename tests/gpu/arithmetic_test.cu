// Arithmetic of device code against that of the host.
#include <cmath>

#include "cuda/common/tanh.cuh"
#include "gpu/device_call.h"

namespace tilewise::gpu {
namespace {

constexpr int kGrid = 1 << 22;  // arguments, from 0 to 10

TILEWISE_INLINE float argument(int i) { return 10.f / kGrid * static_cast<float>(i); }

__global__ void make_tanhs(float* to) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  to[i] = cuda::tanh_of(i % 2 ? -argument(i) : argument(i));
}

TEST(Arithmetic, TanhIsAsNearAsItSays) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no GPU";
  const DeviceBytes made(kGrid * sizeof(float));
  make_tanhs<<<kGrid / 256, 256>>>(reinterpret_cast<float*>(made.data()));
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<double> tanhs = read(made, Type::f32, 0, kGrid);
  double most = 0;
  int at = 0;
  for (int i = 0; i < kGrid; ++i) {
    const double right = std::tanh(static_cast<double>(i % 2 ? -argument(i) : argument(i)));
    const double error = std::abs(tanhs[i] - right) - 0x1p-21 * std::abs(right);
    if (!(error <= most)) most = error, at = i;
  }
  EXPECT_EQ(most, 0) << "beyond 2^-21 of tanh(" << argument(at) << "), which is made " << tanhs[at];
}

}  // namespace
}  // namespace tilewise::gpu
