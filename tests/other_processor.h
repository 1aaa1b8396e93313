// A fixture for tests that pretend to run on another processor.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/device.h"
#include "core/text.h"

namespace tilewise::cases {

class OtherProcessorTest : public testing::Test {
 protected:
  ~OtherProcessorTest() override { pretend(real); }

  // This processor, with other features: have(&Cpu::x86, {}).
  template <class Features>
  static void have(Features Cpu::*set, const Features& features) {
    Cpu cpu = this_cpu();
    cpu.*set = features;
    pretend(cpu);
  }

  static std::string refusal_of(bool (*needs)(int32_t, Text&)) {
    Text why_not;
    const bool runs = needs(0, why_not);
    EXPECT_EQ(runs, why_not.empty());
    return why_not.chars;
  }

  const Cpu real = this_cpu();
};

}  // namespace tilewise::cases
