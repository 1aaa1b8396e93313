#include "traffic/roofline.h"

#include <algorithm>

#include "core/device.h"

namespace tilewise {
namespace {

// ---- CPU

constexpr double kBytesPerSecond = 20e9;      // a nominal memory: the roof, not a measurement
constexpr double kFlopsPerCycle = 2 * 2 * 8;  // of a core: two units, multiply and add, eight lanes

// ---- GPU

// FLOPs of a multiprocessor in a cycle, from the vendor's figures for dense products that add up in fp32.
struct TensorCores {
  int32_t compute_capability;  // and those after it
  double flops_of_16_bits, flops_of_tf32;
};
constexpr TensorCores kTensorCores[] = {
    {120, 1024, 512}, {100, 8192, 4096}, {90, 4096, 2048}, {86, 1024, 512}, {80, 2048, 1024},
};
constexpr double kFlopsOfFma = 256, kProductsOfFp32 = 3;

double bytes_of(const Tensor& t) {
  if (!t) return 0;
  double bytes = static_cast<double>(size_of(t.type));
  for (const int64_t extent : t.shape) bytes *= static_cast<double>(extent);
  return bytes;
}

}  // namespace

double compulsory_bytes(const Problem& p) {
  double bytes = 0;
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.out, &p.lse, &p.dout, &p.dq, &p.dk, &p.dv}) bytes += bytes_of(*t);
  return bytes;
}

double peak_flops_per_second(const Gpu& gpu, Type type) {
  const TensorCores* cores = kTensorCores;
  while (cores->compute_capability > gpu.compute_capability && cores != std::end(kTensorCores) - 1) ++cores;
  const double of_cycle =
      type == Type::f32 ? std::max(kFlopsOfFma, cores->flops_of_tf32 / kProductsOfFp32) : cores->flops_of_16_bits;
  return of_cycle * gpu.multiprocessors * gpu.clock_ghz * 1e9;
}

double roofline_seconds(const Plan& plan, const Problem& problem, const Traffic& traffic) {
  const auto flops = static_cast<double>(traffic.flops);
  if (problem.device_type == TW_CUDA) {
    Gpu gpu;
    if (!cuda_backend()->read_gpu(problem.device_index, gpu).ok()) return 0;
    return std::max(flops / peak_flops_per_second(gpu, problem.type),
                    compulsory_bytes(problem) / gpu.memory_bytes_per_second);
  }
  const double peak = this_cpu().clock_ghz * 1e9 * kFlopsPerCycle * plan.settings.workers;
  const double bytes = static_cast<double>(traffic.bytes_read) + static_cast<double>(traffic.bytes_written);
  return std::max(flops / peak, bytes / kBytesPerSecond);
}

}  // namespace tilewise
