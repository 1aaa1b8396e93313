// The demo's input: queries, keys and values of one layer of a real language model.
#pragma once

#include <string>

#include "cli/workload.h"

namespace tilewise::cli {

// The file given by the user, else that of the installation, else that of the source tree.
std::string demo_data_path(const std::string& given);

class DemoData {
 public:
  explicit DemoData(const std::string& path);

  int64_t tokens() const { return tokens_; }
  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  int64_t head_dim() const { return head_dim_; }

  // The first `tokens` rows; beyond the last row it starts again with the first. fp32 holds their values exactly, and
  // so does bf16 if the file does. A backward workload gets a random gradient of out.
  struct Wanted {
    int64_t tokens;
    Pass pass = Pass::forward;
    Type dtype = Type::f32;
    int64_t threads = 0;
    Device device = {};
  };
  Workload workload(const Wanted& wanted) const;

 private:
  int64_t tokens_, heads_, kv_heads_, head_dim_;
  Buffer q_, k_, v_;  // (token, head, dim) fp32
};

}  // namespace tilewise::cli
