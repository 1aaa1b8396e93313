// In the place of the CUDA runtime: what kernels would have been loaded and started, written down. Nothing runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tilewise::gpu {

struct Start {
  std::string kernel;
  int64_t blocks, threads, shared_bytes;
};

struct Recorder {
  std::map<std::string, int64_t> loaded;  // kernel, and the shared memory that it was allowed
  std::vector<Start> started;
};

// Of this process.
Recorder& recorder();

}  // namespace tilewise::gpu
