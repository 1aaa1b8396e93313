#include "core/device.h"

#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstring>

#include "core/small_file.h"

namespace tilewise {
namespace {

int64_t cache_bytes(int name, int64_t unknown) {
  const int64_t bytes = sysconf(name);
  return bytes > 0 ? bytes : unknown;
}

void read_model(Cpu& cpu) {
  const SmallFile info("/proc/cpuinfo");
  cpu.clock_ghz = info.number_after("cpu MHz", 0) / 1000;
  const char* name = std::strstr(info.text, "model name");
  name = name ? std::strstr(name, ": ") : nullptr;
  if (!name) return;
  name += 2;
  const size_t length = std::min(std::strcspn(name, "\n"), sizeof cpu.model - 1);
  std::memcpy(cpu.model, name, length);
  cpu.model[length] = 0;
}

#if defined(__x86_64__)
bool has_f16c() {  // Clang's __builtin_cpu_supports does not know it
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

Cpu read_cpu() {
  Cpu cpu;
  std::strcpy(cpu.model, "unknown");
  read_model(cpu);
  cpu.l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
  cpu.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
  cpu.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0);
#if defined(__x86_64__)
  __builtin_cpu_init();
  cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  cpu.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return cpu;
}

}  // namespace

const Cpu& this_cpu() {
  static const Cpu cpu = read_cpu();
  return cpu;
}

}  // namespace tilewise
