// A back end whose GPU is this CPU, so that the tests of GPUs are themselves tested where there is none: its memory is
// the host's, its kernels are those of the CPU under other names. TILEWISE_PRETEND_FAULT makes one of them wrong, or
// the whole of another build.
#include <cstdlib>
#include <cstring>

#include "core/backend.h"
#include "core/build.h"
#include "core/unowned.h"

namespace tilewise {
namespace {

bool has_fault(const char* which) {
  const char* fault = std::getenv("TILEWISE_PRETEND_FAULT");
  return fault && std::strcmp(fault, which) == 0;
}

const Kernel& reference(Pass pass) {
  for (const Kernel* kernel : kernels(TW_CPU))
    if (kernel->pass == pass && names_kernel("reference", kernel->name)) return *kernel;
  std::abort();
}

bool runs_on(int32_t, Text&) { return true; }
void refuse(const Problem& problem, Text& reason) {
  if (problem.softcap > 0) reason.format("softcap is not served");
}
void refuse_nothing(const Problem&, Text&) {}

template <Pass kPass>
Sizing size(const Problem& problem, const Settings& settings) {
  return reference(kPass).size(problem, settings);
}

template <Pass kPass>
Status launch(const Problem& problem, const Settings& settings, const Launch& given) {
  Launch launch = given;
  launch.parallel = own_threads();
  const Status status = reference(kPass).launch(problem, settings, launch);
  const Tensor& written = kPass == Pass::forward ? problem.out : problem.dq;
  if (has_fault("stray write")) written.data[-1] = 0;
  if (has_fault("changed input") && problem.total_rows > 0) problem.q.data[0] ^= 1;
  if (has_fault("wrong value") && problem.total_rows > 0) written.data[1] ^= 0x40;
  return status;
}

template <Pass kPass, Rank kRank>
constexpr Kernel row(const char* name) {
  return {.name = name,
          .pass = kPass,
          .rank = kRank,
          .algorithm = Algorithm::naive,
          .isa = Isa::cuda,
          .device_type = TW_CUDA,
          .runs_on = runs_on,
          .refuse = kRank == Rank::fallback ? refuse_nothing : refuse,
          .size = size<kPass>,
          .launch = launch<kPass>};
}
constexpr Kernel kRows[] = {row<Pass::forward, Rank::chosen>("cuda.pretend.forward"),
                            row<Pass::backward, Rank::chosen>("cuda.pretend.backward"),
                            row<Pass::forward, Rank::fallback>("cuda.plain.forward"),
                            row<Pass::backward, Rank::fallback>("cuda.plain.backward")};
constexpr const Kernel* kTable[] = {&kRows[0], &kRows[1], &kRows[2], &kRows[3]};

// ---- The door.

int32_t gpu_count(Text&) { return 1; }
Status read_gpu(int32_t, Gpu& gpu) {
  std::strcpy(gpu.name, "pretended");
  gpu.compute_capability = 90, gpu.multiprocessors = 4, gpu.shared_bytes = 232448;
  return {};
}
Status check_memory(const Problem&, const Launch&) { return {}; }
Status run(const Kernel& kernel, const Problem& problem, const Settings& settings, const Launch& launch) {
  if (Status status = check_lengths(problem); !status.ok()) return status;
  clear_unowned(problem);
  return kernel.launch(problem, settings, launch);
}
Status load(const Kernel&, const Problem&, const Settings&) { return {}; }
Status merge_parts(const Merge&, int32_t, void*) { return failure(TW_UNSUPPORTED, "pretended"); }
Status allocate(int32_t, void*, uint64_t bytes, void** memory) {
  return posix_memalign(memory, 256, bytes) == 0 ? Status{} : failure(TW_OUT_OF_MEMORY, "no memory");
}
void release(int32_t, void*, void* memory) { std::free(memory); }
Status copy(int32_t, void* to, const void* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}
Status wait(int32_t, void*) { return {}; }
Status time(int32_t, void*, int64_t, Status (*)(void*), void*, double*) { return failure(TW_UNSUPPORTED, "pretended"); }

}  // namespace
}  // namespace tilewise

extern "C" __attribute__((visibility("default"))) const tilewise::Backend* tilewise_cuda_backend() {
  using namespace tilewise;
  static const Backend backend = {.build = has_fault("another build") ? kBuild + 1 : kBuild,
                                  .kernels = kTable,
                                  .kernel_count = std::size(kTable),
                                  .gpu_count = gpu_count,
                                  .read_gpu = read_gpu,
                                  .check_memory = check_memory,
                                  .run = run,
                                  .load = load,
                                  .merge = merge_parts,
                                  .allocate = allocate,
                                  .release = release,
                                  .copy = copy,
                                  .wait = wait,
                                  .time = time};
  return &backend;
}
