// Contract C5: more than 65,535 sequences or heads, and elements past 2^31.
#include <sys/mman.h>

#include <cstring>

#include "tests/contract.h"

namespace tilewise::cases {
namespace {

// ---- Many sequences, many heads.

Case many(int64_t batch, int64_t heads, int64_t heads_kv) {
  Case c;
  c.batch = batch, c.seqlen_q = 1, c.seqlen_k = 2, c.heads = heads, c.heads_kv = heads_kv;
  c.head_dim = c.value_dim = 4;
  return c;
}

void expect_right(const Case& c) {
  SCOPED_TRACE(c.packed_q.empty() ? c.name() : "packed");
  const CaseData data(c);
  Expected expected;
  const Status status = expect(data, expected);
  ASSERT_TRUE(status.ok()) << status.message.chars;
  each_kernel([&](const Kernel& kernel) {
    for (const Verdict& verdict : judge(data, expected, kernel.pass, run(data, kernel)))
      EXPECT_TRUE(verdict.ok()) << verdict.text();
  });
}

TEST(ContractC5, SlowSeventyThousandSequences) { expect_right(many(70000, 1, 1)); }

TEST(ContractC5, SlowSeventyThousandHeads) {
  expect_right(many(1, 70000, 70000));
  expect_right(many(1, 70000, 1));
}

TEST(ContractC5, SlowSeventyThousandPackedSequences) {
  Case c = many(70000, 1, 1);
  c.packed_q.assign(70000, 1), c.packed_k.assign(70000, 2);
  c.packed_q[65536] = 0, c.packed_k[65535] = 0, c.max_seqlen = true;
  expect_right(c);
}

// ---- Elements past 2^31: views of mappings whose pages come into being when they are touched.

constexpr int64_t kFar = (int64_t{1} << 31) + 64;  // elements

// A copy of a tensor in which neighbours along one axis lie more than 2^31 elements apart.
class Far {
 public:
  Far(const Stored& from, int axis) : view_(from.view()) {
    const int64_t* n = view_.shape;
    int64_t step = 1;
    for (int at = 3; at >= 0; --at) {
      view_.stride[at] = at == axis ? kFar : step;
      if (at != axis) step *= n[at];
    }
    bytes_ = static_cast<size_t>((n[axis] * kFar + step) * size_of(from.type()));
    void* place = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return;
    view_.data = place;
    copy(from.view(), view_, size_of(from.type()));
  }
  Far(const Far&) = delete;
  ~Far() {
    if (mapped()) munmap(view_.data, bytes_);
  }

  bool mapped() const { return bytes_ > 0 && view_.data != nullptr; }
  const tw_tensor& view() const { return view_; }
  void give_back(const Stored& to) const { copy(view_, to.view(), size_of(to.type())); }

 private:
  static void copy(const tw_tensor& from, const tw_tensor& to, int64_t size) {
    for (int64_t a = 0; a < from.shape[0]; ++a)
      for (int64_t b = 0; b < from.shape[1]; ++b)
        for (int64_t c = 0; c < from.shape[2]; ++c)
          for (int64_t d = 0; d < from.shape[3]; ++d) {
            const auto offset = [&](const tw_tensor& t) {
              return (a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3]) * size;
            };
            std::memcpy(static_cast<char*>(to.data) + offset(to), static_cast<char*>(from.data) + offset(from), size);
          }
  }

  tw_tensor view_;
  size_t bytes_ = 0;
};

Case small() {
  Case c;
  c.batch = 2, c.seqlen_q = 3, c.seqlen_k = 5, c.heads = 4, c.heads_kv = 2, c.head_dim = c.value_dim = 24;
  c.bias = "bhqk", c.dbias = true, c.mask = "b1qk", c.dlse = true;
  return c;
}

class FarTest : public testing::TestWithParam<int> {};  // the axis with the wide stride

TEST_P(FarTest, Forward) {
  const int axis = GetParam();
  const CaseData data(small());
  each_kernel(Pass::forward, [&](const Kernel& kernel) {
    const Outputs want = run(data, kernel), got = data.outputs();
    const Far q(data.q, axis), k(data.k, axis), v(data.v, axis), bias(data.bias, axis), mask(data.mask, axis);
    const Far out(got.out, axis), lse(got.lse, axis);
    tw_attention a = data.attention(got, Pass::forward);
    a.q = q.view(), a.k = k.view(), a.v = v.view(), a.bias = bias.view(), a.mask = mask.view();
    a.out = out.view(), a.lse = lse.view();
    const Status status = run_call(a, nullptr, kernel);
    ASSERT_TRUE(status.ok()) << status.message.chars;
    out.give_back(got.out), lse.give_back(got.lse);
    expect_same(got, want, Pass::forward);
  });
}

TEST_P(FarTest, Backward) {
  const int axis = GetParam();
  const CaseData data(small());
  each_kernel(Pass::backward, [&](const Kernel& kernel) {
    const Outputs want = run(data, kernel), got = backward_outputs(data, want);
    const Far q(data.q, axis), k(data.k, axis), v(data.v, axis), bias(data.bias, axis), dout(data.dout, axis);
    const Far out(got.out, axis), lse(got.lse, axis), dlse(data.dlse, axis);
    const Far dq(got.dq, axis), dk(got.dk, axis), dv(got.dv, axis), dbias(got.dbias, axis);
    tw_attention a = data.attention(got, Pass::backward);
    a.q = q.view(), a.k = k.view(), a.v = v.view(), a.bias = bias.view(), a.out = out.view(), a.lse = lse.view();
    tw_attention_grad g = data.gradients(got);
    g.dout = dout.view(), g.dlse = dlse.view();
    g.dq = dq.view(), g.dk = dk.view(), g.dv = dv.view(), g.dbias = dbias.view();
    const Status status = run_call(a, &g, kernel);
    ASSERT_TRUE(status.ok()) << status.message.chars;
    dq.give_back(got.dq), dk.give_back(got.dk), dv.give_back(got.dv), dbias.give_back(got.dbias);
    expect_same(got, want, Pass::backward);
  });
}

INSTANTIATE_TEST_SUITE_P(ContractC5, FarTest, testing::Values(0, 1, 2));

// ---- Sizes that are planned, not run.

// All scores of all heads would take more bytes than 64 bits count; `standard` holds those of as many heads as fit.
TEST(ContractC5, StandardPlansForSomeHeadsOfMany) {
  constexpr int64_t kRows = 252864, kKeys = 118896, kHeads = 256;
  for (const int64_t batch : {int64_t{1}, int64_t{1} << 10, int64_t{1} << 22, int64_t{1} << 30}) {
    tw_attention a;
    TW_INIT(a);
    a.device_type = TW_CPU;
    a.q = a.out = tw_tensor_of(nullptr, TW_F16, 1, kRows, kHeads, 1);
    a.k = a.v = tw_tensor_of(nullptr, TW_F16, 1, kKeys, 1, 1);
    a.cu_seqlens_q = a.cu_seqlens_k = tw_tensor_of(nullptr, TW_I32, batch + 1, 1, 1, 1);
    Problem problem;
    ASSERT_TRUE(make_problem(a, nullptr, false, problem).ok());
    for (const Kernel* kernel : kernels_here(Pass::forward)) {
      if (kernel->algorithm != Algorithm::standard) continue;
      const double scores = 2 * 4.0 * kRows * kKeys,
                   bytes = static_cast<double>(kernel->size(problem, {.fast_memory = 65536}).workspace_bytes);
      EXPECT_GE(bytes, scores) << kernel->name << " " << batch;
      EXPECT_LE(bytes, 1.1 * scores) << kernel->name << " " << batch;
    }
  }
}

}  // namespace
}  // namespace tilewise::cases
