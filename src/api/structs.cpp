#include "api/structs.h"

#include <algorithm>
#include <cstring>

namespace tilewise::api {
namespace {

constexpr uint32_t kLargestStruct = 1 << 16;  // above it struct_size was never written: reading on would be unsafe

thread_local char last_error[sizeof(Text::chars)] = {};

}  // namespace

tw_status report(const Status& status) {
  if (!status.ok()) std::memcpy(last_error, status.message.chars, std::strlen(status.message.chars) + 1);
  return status.code;
}

Status take_struct(const char* name, const void* given, void* result, uint32_t size) {
  std::memset(result, 0, size);
  if (!given) return failure(TW_INVALID_ARGUMENT, "%s is NULL", name);
  uint32_t given_size;
  std::memcpy(&given_size, given, sizeof given_size);
  if (given_size < 8 || given_size > kLargestStruct || given_size % 8 != 0) {
    return failure(TW_INVALID_ARGUMENT, "%s.struct_size is %u: TW_INIT writes the size of the struct, here %u", name,
                   given_size, size);
  }
  const char* bytes = static_cast<const char*>(given);
  for (uint32_t i = size; i < given_size; ++i) {
    if (bytes[i] != 0) {
      return failure(TW_UNSUPPORTED, "%s.struct_size is %u and byte %u is not 0: this library knows only %u bytes",
                     name, given_size, i, size);
    }
  }
  std::memcpy(result, given, std::min(given_size, size));
  return {};
}

}  // namespace tilewise::api

extern "C" {

const char* tw_last_error(void) { return tilewise::api::last_error; }

uint32_t tw_version(void) { return TW_VERSION; }

const char* tw_status_name(tw_status status) {
  switch (status) {
    case TW_OK:
      return "TW_OK";
    case TW_INVALID_ARGUMENT:
      return "TW_INVALID_ARGUMENT";
    case TW_UNSUPPORTED:
      return "TW_UNSUPPORTED";
    case TW_PLAN_MISMATCH:
      return "TW_PLAN_MISMATCH";
    case TW_WORKSPACE_TOO_SMALL:
      return "TW_WORKSPACE_TOO_SMALL";
    case TW_OUT_OF_MEMORY:
      return "TW_OUT_OF_MEMORY";
    case TW_DEVICE_ERROR:
      return "TW_DEVICE_ERROR";
    case TW_INTERNAL:
      return "TW_INTERNAL";
    default:
      return "unknown status";
  }
}

}  // extern "C"
