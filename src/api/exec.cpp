#include "api/exec.h"

#include <cstring>

#include "api/structs.h"

namespace tilewise::api {
namespace {

Status check_pool(const tw_thread_pool& given) {
  tw_thread_pool pool;
  if (Status status = take("exec.pool", &given, pool); !status.ok()) return status;
  if (pool.reserved != 0) return failure(TW_INVALID_ARGUMENT, "exec.pool.reserved is %u: must be 0", pool.reserved);
  if (!pool.parallel_for) return failure(TW_INVALID_ARGUMENT, "exec.pool.parallel_for is NULL");
  return {};
}

}  // namespace

Status take_exec(const tw_exec* exec, int32_t device_type, tw_exec& result) {
  std::memset(&result, 0, sizeof result);
  if (!exec) return {};
  if (Status status = take("exec", exec, result); !status.ok()) return status;
  if (result.reserved != 0) return failure(TW_INVALID_ARGUMENT, "exec.reserved is %u: must be 0", result.reserved);
  if (device_type == TW_CPU && result.stream) {
    return failure(TW_INVALID_ARGUMENT, "exec.stream is %p but device_type is TW_CPU: the CPU has no streams",
                   result.stream);
  }
  if (device_type == TW_CUDA && result.pool) {
    return failure(TW_INVALID_ARGUMENT,
                   "exec.pool is given but device_type is TW_CUDA: a GPU uses no threads of a host");
  }
  if (device_type == TW_CUDA && reinterpret_cast<uintptr_t>(result.fault) % alignof(tw_fault) != 0) {
    return failure(TW_INVALID_ARGUMENT, "exec.fault is %p: must be aligned to %zu bytes",
                   static_cast<void*>(result.fault), alignof(tw_fault));
  }
  return result.pool ? check_pool(*result.pool) : Status{};
}

Parallel parallel_of(const tw_exec& exec) {
  if (!exec.pool) return own_threads();
  return {exec.pool->context, exec.pool->parallel_for};
}

}  // namespace tilewise::api
