// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::cli {

std::string count_text(int64_t n);     // "8,192"
std::string size_text(int64_t bytes);  // "640 B", "16.0 MiB"
std::string error_text(double error);  // "3.1e-07", "0"
std::string time_text(double ms);      // "0.042", "12.3", "1,234": milliseconds in about three digits
std::string ratio_text(double ratio);  // "1.84x", "128x"

// Of own to other where less is better: "1.84x faster", "1.20x slower".
std::string against_text(double other, double own, const char* better, const char* worse);

}  // namespace tilewise::cli
