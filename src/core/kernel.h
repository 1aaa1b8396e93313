// Kernel: one way to compute a pass. THE table (kernels.cpp) lists all kernels of all back ends, best first.
#pragma once

#include <cstdint>
#include <span>

#include "core/problem.h"
#include "core/threads.h"

namespace tilewise {

// What planning chooses or is told, beyond the problem.
struct Settings {
  int workers = 1;          // CPU: tasks to run at once; CUDA: multiprocessors to use
  int64_t fast_memory = 0;  // M, fp32 elements: sizes blocks. CUDA: the shared memory that one thread block may have
};

// A kernel's choices for a problem; only speed and memory depend on them. 0 = has no such thing.
struct Sizing {
  int64_t query_rows = 0;        // of a tile: rows that share each visit of a block of keys
  int64_t keys = 0;              // of a block
  int64_t chunk_keys = 0;        // keys that one unit of a backward pass owns
  int64_t splits = 0;            // parts of the keys worked on at once
  uint64_t workspace_bytes = 0;  // serves every problem that is no larger
};

struct Launch {
  char* workspace = nullptr;  // as large as the plan says, 256-byte aligned, any content
  Parallel parallel;          // CPU
  void* stream = nullptr;     // CUDA
  tw_fault* fault = nullptr;  // CUDA
};

enum class Rank : int32_t {
  chosen,    // the first of these that accepts serves
  fallback,  // serves what those refuse; refused with TILEWISE_STRICT=1
  rung       // for comparison: only when forced
};

// Whose schedule a kernel follows, so what it moves (src/traffic/). `naive` has no blocks.
enum class Algorithm : int32_t { naive, standard, v1, v2 };

// What a kernel was built for. CUDA: which machine code runs is the driver's choice.
enum class Isa : int32_t { baseline, avx2, avx512, neon, sve128, sve256, sve512, cuda };

struct Kernel {
  const char* name;  // backend.kernel[.isa].pass
  Pass pass;
  Rank rank;
  Algorithm algorithm;
  Isa isa;
  int32_t device_type;
  bool (*runs_on)(int32_t device_index, Text& why_not);  // no other function of the row is called where this is false
  void (*refuse)(const Problem& problem, Text& reason);  // leaves `reason` empty if it serves the problem
  Sizing (*size)(const Problem& problem, const Settings& settings);
  // Its code, onto the device; null: nothing to load.
  Status (*load)(const Problem& problem, const Settings& settings) = nullptr;
  Status (*launch)(const Problem& problem, const Settings& settings, const Launch& launch);
};

// The rows of a device, best first. Empty where its back end is missing.
std::span<const Kernel* const> kernels(int32_t device_type);

// True if `part` is a run of whole parts of `name`: "tiled", "cpu.tiled.avx2" of "cpu.tiled.avx2.forward".
bool names_kernel(const char* part, const char* name);

}  // namespace tilewise
