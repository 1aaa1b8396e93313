// DeviceCopy: the tensors of a problem, and a workspace, copied into the memory of a GPU. All lie in one allocation
// between poisoned bytes, so that whoever writes outside of them shows.
//
// For a sanitizer, which sees that by itself and more (TILEWISE_EXACT_ALLOCATIONS=1): each in an allocation of its own,
// and what nobody has written is left as it comes.
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
  char* workspace() const { return workspace_; }  // full of NaN
  tw_fault* fault() const { return reinterpret_cast<tw_fault*>(blocks_[0].device); }

  // Waits for the default stream and copies back what the pass writes, gaps included. TW_INTERNAL if anything else has
  // changed: an input, or bytes around the tensors and the workspace. TW_INVALID_ARGUMENT if a fault was recorded.
  Status fetch();

 private:
  // Bytes of the host, and where they lie on the device.
  struct Block {
    char* host;
    int64_t bytes;
    bool written, gapless;
    char* device = nullptr;
    int64_t place = 0;  // in image_
  };

  void find_blocks(const Problem& problem);
  Status place_together();
  Status place_apart(bool reads_results);
  Status allocate(uint64_t bytes, char*& memory);
  void redirect(Problem& problem) const;
  Status compare_with_image(const std::vector<char>& after);

  int32_t gpu_;
  uint64_t workspace_bytes_;
  char* workspace_ = nullptr;
  tw_fault fault_ = {};
  std::vector<Block> blocks_;  // that of fault_ first
  std::vector<char> image_;    // what the one allocation holds before the call; empty if they lie apart
  int64_t workspace_place_ = 0;
  std::vector<char*> allocations_;
  Status status_;
};

}  // namespace tilewise::cases
