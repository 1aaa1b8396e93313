// What a fuzzer promises beyond "no crash": a broken promise ends the process, which libFuzzer takes for a crash.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tilewise::fuzz {

inline void require(bool kept, const char* promise, const char* shown = "") {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s: %s\n", promise, shown);
  std::abort();
}

}  // namespace tilewise::fuzz
