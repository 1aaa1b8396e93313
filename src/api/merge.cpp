#include "cpu/merge.h"

#include "api/exec.h"
#include "api/structs.h"
#include "core/backend.h"

namespace tilewise::api {
namespace {

Status merge_call(const tw_merge* given, const tw_exec* given_exec) {
  tw_merge known;
  tw_exec exec;
  Merge merge;
  if (Status status = take("merge", given, known); !status.ok()) return status;
  if (Status status = take_exec(given_exec, known.device_type, exec); !status.ok()) return status;
  if (Status status = make_merge(known, merge); !status.ok()) return status;
  if (known.device_type == TW_CUDA) {
    if (Status status = check_gpu(known.device_index); !status.ok()) return status;
    return cuda_backend()->merge(merge, known.device_index, exec.stream);
  }
  cpu::merge(merge, parallel_of(exec));
  return {};
}

}  // namespace
}  // namespace tilewise::api

extern "C" tw_status tw_attention_merge(const tw_merge* merge, const tw_exec* exec) {
  return tilewise::api::report(tilewise::api::merge_call(merge, exec));
}
