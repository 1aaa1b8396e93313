// Which kernels serve on x86-64 processors that have less than this one, and what is said of the others.
#include <gtest/gtest.h>

#include <string>

#include "cpu/runs_on.h"
#include "other_processor.h"
#include "served_by.h"

namespace tilewise::cases {
namespace {

constexpr X86 kAll = {true, true, true, true, true, true, true, true, true};

X86 without(std::initializer_list<bool X86::*> parts) {
  X86 x86 = kAll;
  for (const auto part : parts) x86.*part = false;
  return x86;
}

class X86Test : public OtherProcessorTest {
 protected:
  static void have(const X86& x86) { OtherProcessorTest::have(&Cpu::x86, x86); }
};

TEST_F(X86Test, WhatIsMissingIsNamed) {
  have(kAll);
  EXPECT_EQ(refusal_of(cpu::needs_avx2), "");
  EXPECT_EQ(refusal_of(cpu::needs_avx512), "");
  have({});
  EXPECT_EQ(refusal_of(cpu::needs_avx2), "this CPU has no AVX2, FMA and F16C");
  EXPECT_EQ(refusal_of(cpu::needs_avx512), "this CPU has no AVX-512 F, BW, DQ and VL");
  have(without({&X86::f16c}));
  EXPECT_EQ(refusal_of(cpu::needs_avx2), "this CPU has no F16C");
  EXPECT_EQ(refusal_of(cpu::needs_avx512), "this CPU has no F16C");
  have(without({&X86::avx512bw, &X86::avx512vl}));  // F, DQ: Knights Mill and the like
  EXPECT_EQ(refusal_of(cpu::needs_avx2), "");
  EXPECT_EQ(refusal_of(cpu::needs_avx512), "this CPU has no AVX-512 BW and VL");
  have(without({&X86::keeps_zmm}));
  EXPECT_EQ(refusal_of(cpu::needs_avx2), "");
  EXPECT_EQ(refusal_of(cpu::needs_avx512), "the operating system does not save AVX-512 registers");
  have(without({&X86::keeps_ymm, &X86::keeps_zmm}));
  EXPECT_EQ(refusal_of(cpu::needs_avx2), "the operating system does not save AVX registers");
  EXPECT_EQ(refusal_of(cpu::needs_avx512), "the operating system does not save AVX registers");
}

TEST_F(X86Test, WithoutAvx2ThePortableKernelsServe) {
  have({});
  expect_served_by("cpu.tiled.portable");
}

TEST_F(X86Test, WithoutAvx512Avx2Serves) {
  if (!real.x86.runs_avx2()) GTEST_SKIP() << refusal_of(cpu::needs_avx2);
  have(without({&X86::avx512vl}));
  expect_served_by("cpu.tiled.avx2");
}

TEST_F(X86Test, Avx512ServesFirst) {
  if (!real.x86.runs_avx512()) GTEST_SKIP() << refusal_of(cpu::needs_avx512);
  expect_served_by("cpu.tiled.avx512");
}

TEST_F(X86Test, AKernelThatCannotRunIsNotForced) {
  have({});
  const CaseData data(Case{});
  const Outputs outputs = data.outputs();
  Plan plan;
  for (const std::string isa : {"avx2", "avx512"}) {
    const std::string kernel = "cpu.tiled." + isa;
    const Status status = run_case(data, Pass::forward, {.kernel = kernel.c_str()}, outputs, plan);
    EXPECT_EQ(status.code, TW_UNSUPPORTED);
    EXPECT_NE(std::string(status.message.chars).find("this CPU has no AVX"), std::string::npos) << status.message.chars;
  }
}

}  // namespace
}  // namespace tilewise::cases
