// What `tilewise run` reads and writes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/files/array.h"
#include "cli/files/output_file.h"
#include "cli/shape.h"

namespace tilewise::cli {

struct RunOptions {
  std::string input;
  std::string query, key, value;  // by default "q", "k", "v" of the input
  std::string dout, bias, alibi_slopes, sink;
  std::string output, out, lse, dq, dk, dv;
  std::string layout = "bshd", out_dtype = "same", kernel;
  ScoreOptions scores;
  int64_t threads = 0;
  std::optional<int64_t> fast_memory;
  bool json = false;
};

// Tensors by their roles: "q", "bias", ..; those that are not given are absent.
class RunInputs {
 public:
  explicit RunInputs(const RunOptions& options);

  bool has(const std::string& role) const { return arrays_.count(role) > 0; }
  const Array& array(const std::string& role) const { return arrays_.at(role); }
  tw_tensor sequence(const std::string& role, Layout layout) const;
  tw_tensor trailing(const std::string& role, int axes) const;

 private:
  std::map<std::string, Array> arrays_;
  std::map<std::string, std::string> names_;  // for messages
};

// Where results go: "out", "lse", "dq", "dk", "dv". Opened before anything is computed.
class RunOutputs {
 public:
  explicit RunOutputs(const RunOptions& options);

  bool wants(const std::string& role) const;
  void write(const NamedArrays& results);
  std::vector<std::string> paths() const;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<OutputFile>>> files_;
};

}  // namespace tilewise::cli
