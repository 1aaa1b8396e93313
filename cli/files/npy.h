// npy, versions 1 to 3: little-endian, C order, fp32 or fp16. Reading trusts nothing in the file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/files/array.h"
#include "cli/files/output_file.h"

namespace tilewise::cli {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// The header's Python dictionary. Throws Failure(bad_input) without a path.
NpyHeader parse_npy_header(std::string_view text);

Array read_npy(const std::string& path);
void write_npy(OutputFile& file, const Array& array);

}  // namespace tilewise::cli
