// For kernels that may refuse a problem by name.
#pragma once

#include <gtest/gtest.h>

#include "core/status.h"

// Skips the test at a refusal, fails it at any other error.
#define RUN_OR_SKIP(call)                                                            \
  do {                                                                               \
    const tilewise::Status run_status = (call);                                      \
    if (run_status.code == TW_UNSUPPORTED) GTEST_SKIP() << run_status.message.chars; \
    ASSERT_TRUE(run_status.ok()) << run_status.message.chars;                        \
  } while (false)
