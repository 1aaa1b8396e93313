// DeviceCopy: the tensors of a problem, and a workspace, copied into the memory of a GPU. All lie in one allocation
// between poisoned bytes, so that whoever writes outside of them shows.
#pragma once

#include <vector>

#include "core/problem.h"

namespace tilewise::cases {

class DeviceCopy {
 public:
  // Points `problem` at the copies. Tensors that share memory on the host share it there.
  DeviceCopy(Problem& problem, uint64_t workspace_bytes);
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  const Status& status() const { return status_; }
  char* workspace() const { return device_ + workspace_; }  // full of NaN
  tw_fault* fault() const { return reinterpret_cast<tw_fault*>(device_ + blocks_[0].place); }

  // Waits for the default stream and copies back what the pass writes, gaps included. TW_INTERNAL if anything else has
  // changed: an input, or bytes around the tensors and the workspace. TW_INVALID_ARGUMENT if a fault was recorded.
  Status fetch();

 private:
  // Bytes of the host, and where they lie in the allocation.
  struct Block {
    char* host;
    int64_t bytes, place;
    bool written;
  };

  void find_blocks(const Problem& problem);
  void lay_out();
  void redirect(Problem& problem) const;

  int32_t gpu_;
  uint64_t workspace_bytes_, workspace_ = 0;
  tw_fault fault_ = {};
  std::vector<Block> blocks_;  // that of fault_ first
  std::vector<char> image_;    // what the allocation holds before the call
  char* device_ = nullptr;
  Status status_;
};

}  // namespace tilewise::cases
