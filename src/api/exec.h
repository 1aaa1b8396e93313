// tw_exec: where a call runs.
#pragma once

#include "core/status.h"
#include "core/threads.h"

namespace tilewise::api {

// exec null = all zero. A pool is checked too.
Status take_exec(const tw_exec* exec, int32_t device_type, tw_exec& result);

// The threads of a CPU call, after take_exec.
Parallel parallel_of(const tw_exec& exec);

}  // namespace tilewise::api
