// What a step of the library answers: a code of the C interface and, when it is not TW_OK, the message that goes with
// it.
#pragma once

#include <cstdint>

#include "core/text.h"
#include "tilewise/tilewise.h"

namespace tilewise {

struct [[nodiscard]] Status {
  tw_status code = TW_OK;
  Text message;

  bool ok() const { return code == TW_OK; }
};

// The message names the argument, its value and the rule.
[[gnu::format(printf, 2, 3)]] Status failure(tw_status code, const char* pattern, ...);

}  // namespace tilewise
