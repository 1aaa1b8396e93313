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

}  // namespace tilewise::cpu
