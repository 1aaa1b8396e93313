#include "cpu/runs_on.h"

#include <array>
#include <span>

#include "core/device.h"

namespace tilewise::cpu {
namespace {

struct Part {
  const char* name;
  bool present;
};

// "this CPU has no AVX-512 BW, DQ and VL", of which `set` is "AVX-512 "; leaves `why_not` empty if all are present.
void name_missing(const char* set, std::span<const Part> parts, Text& why_not) {
  int64_t missing = 0, named = 0;
  for (const Part& part : parts) missing += !part.present;
  for (const Part& part : parts) {
    if (part.present) continue;
    if (named == 0) why_not.format("this CPU has no %s", set);
    const char* before = named == 0 ? "" : named + 1 == missing ? " and " : ", ";
    why_not.append("%s%s", before, part.name);
    ++named;
  }
}

bool needs_sve(int bits, Text& why_not) {
  const Arm& has = this_cpu().arm;
  if (has.sve_bits == bits) return true;
  if (has.sve_bits == 0) {
    why_not.format("this CPU has no SVE");
  } else {
    why_not.format("this CPU's SVE vectors have %d bits, not %d", has.sve_bits, bits);
  }
  return false;
}

}  // namespace

bool runs_anywhere(int32_t, Text&) { return true; }

bool needs_avx2(int32_t, Text& why_not) {
  const X86& has = this_cpu().x86;
  if (has.runs_avx2()) return true;
  name_missing("", std::array{Part{"AVX2", has.avx2}, Part{"FMA", has.fma}, Part{"F16C", has.f16c}}, why_not);
  if (why_not.empty()) why_not.format("the operating system does not save AVX registers");
  return false;
}

bool needs_avx512(int32_t device_index, Text& why_not) {
  const X86& has = this_cpu().x86;
  if (has.runs_avx512()) return true;
  name_missing(
      "AVX-512 ",
      std::array{Part{"F", has.avx512f}, Part{"BW", has.avx512bw}, Part{"DQ", has.avx512dq}, Part{"VL", has.avx512vl}},
      why_not);
  if (why_not.empty() && needs_avx2(device_index, why_not)) {
    why_not.format("the operating system does not save AVX-512 registers");
  }
  return false;
}

bool needs_neon(int32_t, Text& why_not) {
  if (!this_cpu().arm.neon) why_not.format("this CPU has no NEON");
  return this_cpu().arm.neon;
}

bool needs_sve128(int32_t, Text& why_not) { return needs_sve(128, why_not); }
bool needs_sve256(int32_t, Text& why_not) { return needs_sve(256, why_not); }
bool needs_sve512(int32_t, Text& why_not) { return needs_sve(512, why_not); }

}  // namespace tilewise::cpu
