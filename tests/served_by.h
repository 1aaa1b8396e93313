// Which family of kernels serves where none is named.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cases/measure.h"

namespace tilewise::cases {

// Both passes of calls that name no kernel.
inline void expect_served_by(const std::string& family) {
  Case masked;
  masked.batch = 2, masked.heads = 4, masked.heads_kv = 2, masked.seqlen_q = 70, masked.seqlen_k = 131;
  masked.head_dim = 24, masked.value_dim = 40, masked.causal = true;
  Case half = masked;
  half.type = Type::f16, half.softcap = 3, half.alibi = "1h", half.dropout_p = 0.25f;
  for (const Case& c : {masked, half}) {
    SCOPED_TRACE(c.name());
    const CaseData data(c);
    Expected expected;
    ASSERT_TRUE(expect(data, expected).ok());
    Outputs outputs = data.outputs();
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward) outputs = backward_outputs(data, outputs);
      Plan plan;
      const Status status = run_case(data, pass, {}, outputs, plan);
      ASSERT_TRUE(status.ok()) << status.message.chars;
      EXPECT_EQ(plan.kernel->name, family + (pass == Pass::forward ? ".forward" : ".backward"));
      for (const Verdict& verdict : judge(data, expected, pass, outputs)) EXPECT_TRUE(verdict.ok()) << verdict.text();
    }
  }
}

}  // namespace tilewise::cases
