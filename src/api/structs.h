// The C boundary's own tools: sized structs in, Status to code and thread-local message out.
#pragma once

#include "core/status.h"

namespace tilewise::api {

// Remembers the message for tw_last_error and returns the code.
tw_status report(const Status& status);

// Copies what the caller knows of a struct; fields that an older caller lacks are zero, fields that this library lacks
// must be zero. `name` is the argument's.
Status take_struct(const char* name, const void* given, void* result, uint32_t size);

template <typename Struct>
Status take(const char* name, const Struct* given, Struct& result) {
  return take_struct(name, given, &result, sizeof(Struct));
}

}  // namespace tilewise::api
