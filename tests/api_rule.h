// A rule of the arguments as a row of a table: what breaks it, and what the library must say.
#pragma once

#include <gtest/gtest.h>

#include <ostream>

#include "api_call.h"

namespace tilewise::test {

inline constexpr int64_t kHuge = int64_t{1} << 62;
inline constexpr tw_status kInvalid = TW_INVALID_ARGUMENT;

struct Rule {
  const char* name;
  void (*break_it)(Call& c);
  tw_status code;
  const char* message;  // a part of it
};

inline std::ostream& operator<<(std::ostream& stream, const Rule& rule) { return stream << rule.name; }

class BrokenRule : public testing::TestWithParam<Rule> {
 protected:
  static void expect_broken(tw_status status) {
    EXPECT_EQ(status, GetParam().code) << tw_last_error();
    EXPECT_TRUE(last_error_has(GetParam().message)) << tw_last_error() << "\nwanted: " << GetParam().message;
  }
};

inline std::string name_of_rule(const testing::TestParamInfo<Rule>& rule) { return rule.param.name; }

}  // namespace tilewise::test
