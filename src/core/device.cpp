#include "core/device.h"

#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cstring>

#include "core/small_file.h"
#include "core/text.h"

namespace tilewise {
namespace {

int64_t cache_bytes(int name, int64_t unknown) {
  const int64_t bytes = sysconf(name);
  return bytes > 0 ? bytes : unknown;
}

// What stands after the first `label` and ": ", to the end of the line; empty without one.
Text field_of(const SmallFile& file, const char* label) {
  Text field;
  const char* at = std::strstr(file.text, label);
  at = at ? std::strstr(at, ": ") : nullptr;
  if (at) field.format("%.*s", static_cast<int>(std::strcspn(at + 2, "\n")), at + 2);
  return field;
}

void read_model(Cpu& cpu) {
  const SmallFile info("/proc/cpuinfo");
  cpu.clock_ghz = info.number_after("cpu MHz", 0) / 1000;
  Text model = field_of(info, "model name");
  const Text implementer = field_of(info, "CPU implementer");
  if (model.empty() && !implementer.empty()) {  // 64-bit ARM has no names there: 0x41 0xd40 is a Neoverse V1
    model.format("ARM %s %s", implementer.chars, field_of(info, "CPU part").chars);
  }
  if (model.empty()) return;
  const size_t length = std::min(std::strlen(model.chars), sizeof cpu.model - 1);
  std::memcpy(cpu.model, model.chars, length);
  cpu.model[length] = 0;
}

#if defined(__x86_64__)
// The registers that the operating system saves (XCR0).
unsigned saved_registers() {
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

X86 read_x86() {
  constexpr unsigned kYmm = 0x06, kZmm = 0xe6;
  X86 x86;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return x86;
  x86.fma = ecx & bit_FMA;
  x86.f16c = ecx & bit_F16C;
  const unsigned saved = ecx & bit_OSXSAVE ? saved_registers() : 0;
  x86.keeps_ymm = (saved & kYmm) == kYmm;
  x86.keeps_zmm = (saved & kZmm) == kZmm;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return x86;
  x86.avx2 = ebx & bit_AVX2;
  x86.avx512f = ebx & bit_AVX512F;
  x86.avx512bw = ebx & bit_AVX512BW;
  x86.avx512dq = ebx & bit_AVX512DQ;
  x86.avx512vl = ebx & bit_AVX512VL;
  return x86;
}
#else
X86 read_x86() { return {}; }
#endif

#if defined(__aarch64__)
// By their numbers in the kernel's interface: headers of older systems have no names for SVE.
Arm read_arm() {
  constexpr unsigned long kHasNeon = 1ul << 1, kHasSve = 1ul << 22;  // of AT_HWCAP
  constexpr int kGetVectorLength = 51, kLengthMask = 0xffff;         // PR_SVE_GET_VL: bytes, and flags above them
  const unsigned long has = getauxval(AT_HWCAP);
  const int length = has & kHasSve ? prctl(kGetVectorLength, 0, 0, 0, 0) : 0;
  return {.neon = (has & kHasNeon) != 0, .sve_bits = length > 0 ? (length & kLengthMask) * 8 : 0};
}
#else
Arm read_arm() { return {}; }
#endif

Cpu read_cpu() {
  Cpu cpu;
  std::strcpy(cpu.model, "unknown");
  read_model(cpu);
  cpu.l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
  cpu.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
  cpu.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0);
  cpu.x86 = read_x86();
  cpu.arm = read_arm();
  return cpu;
}

Cpu& known_cpu() {
  static Cpu cpu = read_cpu();
  return cpu;
}

}  // namespace

const Cpu& this_cpu() { return known_cpu(); }

void pretend(const Cpu& cpu) { known_cpu() = cpu; }

}  // namespace tilewise
