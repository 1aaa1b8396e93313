// safetensors: u64 header length, JSON header, data. Reading trusts nothing in the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/files/array.h"
#include "cli/files/input_file.h"
#include "cli/files/output_file.h"

namespace tilewise::cli {

struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes of the data section
};
using SafetensorsHeader = std::map<std::string, SafetensorsEntry>;

// The header's JSON -> its tensors. Anything but the format's own three levels is refused while it is read, so deep
// nesting costs nothing. Throws Failure(bad_input) without a path.
SafetensorsHeader parse_safetensors_header(std::string_view json);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);  // reads and checks the header

  const SafetensorsHeader& header() const { return header_; }
  Array read(const std::string& name) const;

 private:
  void check_data(int64_t data_bytes) const;

  InputFile file_;
  SafetensorsHeader header_;
  int64_t data_begin_ = 0;
};

void write_safetensors(OutputFile& file, const NamedArrays& arrays);

}  // namespace tilewise::cli
