// Which kernels serve on 64-bit ARM processors, and what is said of the others.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cpu/runs_on.h"
#include "other_processor.h"
#include "served_by.h"

namespace tilewise::cases {
namespace {

class ArmTest : public OtherProcessorTest {
 protected:
  static void have(const Arm& arm) { OtherProcessorTest::have(&Cpu::arm, arm); }
};

TEST_F(ArmTest, WhatIsMissingIsNamed) {
  have({.neon = true, .sve_bits = 128});
  EXPECT_EQ(refusal_of(cpu::needs_neon), "");
  EXPECT_EQ(refusal_of(cpu::needs_sve128), "");
  EXPECT_EQ(refusal_of(cpu::needs_sve256), "this CPU's SVE vectors have 128 bits, not 256");
  EXPECT_EQ(refusal_of(cpu::needs_sve512), "this CPU's SVE vectors have 128 bits, not 512");
  have({.neon = true, .sve_bits = 1024});
  EXPECT_EQ(refusal_of(cpu::needs_sve512), "this CPU's SVE vectors have 1024 bits, not 512");
  have({});
  EXPECT_EQ(refusal_of(cpu::needs_neon), "this CPU has no NEON");
  EXPECT_EQ(refusal_of(cpu::needs_sve128), "this CPU has no SVE");
}

#ifdef __aarch64__
// TILEWISE_SVE_BITS says what the emulated processor has.
TEST_F(ArmTest, TheProcessorIsKnown) {
  const char* bits = std::getenv("TILEWISE_SVE_BITS");
  ASSERT_NE(bits, nullptr);
  EXPECT_TRUE(real.arm.neon);
  EXPECT_EQ(real.arm.sve_bits, std::stoi(bits));
  std::string info(tw_info(nullptr, 0) + 1, 0);
  tw_info(info.data(), info.size());
  const std::string isa = real.arm.sve_bits > 0 ? "[\"neon\", \"sve" + std::string(bits) + "\"]" : "[\"neon\"]";
  EXPECT_NE(info.find(isa), std::string::npos) << info;
}

TEST_F(ArmTest, TheLongestVectorsServeFirst) {
  const bool longer = real.arm.sve_bits == 256 || real.arm.sve_bits == 512;
  expect_served_by(longer ? "cpu.tiled.sve" + std::to_string(real.arm.sve_bits) : "cpu.tiled.neon");
}

TEST_F(ArmTest, WithoutSveNeonServes) {
  have({.neon = true});
  expect_served_by("cpu.tiled.neon");
}

TEST_F(ArmTest, WithoutNeonThePortableKernelsServe) {
  have({});
  expect_served_by("cpu.tiled.portable");
}

TEST_F(ArmTest, AnEnvironmentVariableForcesEach) {
  for (const char* isa : {"portable", "neon", "sve128", "sve256", "sve512"}) {
    const std::string kernel = std::string("cpu.tiled.") + isa;
    setenv("TILEWISE_FORCE_KERNEL", isa, 1);
    const std::string own = "sve" + std::to_string(real.arm.sve_bits);
    if (std::string(isa).find("sve") == 0 && isa != own) {
      const CaseData data(Case{});
      Plan plan;
      const Status status = run_case(data, Pass::forward, {}, data.outputs(), plan);
      EXPECT_EQ(status.code, TW_UNSUPPORTED);
      EXPECT_NE(std::string(status.message.chars).find("SVE"), std::string::npos) << status.message.chars;
    } else {
      expect_served_by(kernel);
    }
  }
  unsetenv("TILEWISE_FORCE_KERNEL");
}
#endif

}  // namespace
}  // namespace tilewise::cases
