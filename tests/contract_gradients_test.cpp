// The oracle's gradients against finite differences in fp64, for each option alone and for each pair of options: an
// option that a backward forgets shows here. Kernels are held against the oracle elsewhere.
#include "cases/random.h"
#include "tests/contract.h"

namespace tilewise::cases {
namespace {

constexpr double kStep = 0x1p-8;

// Multiples of 2^-14: adding and taking away steps is exact in fp32.
void make_exact(Stored& t) {
  t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    const double x = t.at(a, b, c, d);
    if (std::isfinite(x)) t.set(std::round(x * 0x1p14) * 0x1p-14, a, b, c, d);
  });
}

double loss_of(const CaseData& data) {
  const Outputs o = data.dense_outputs(Type::f64);
  const Status status = run_exact(data, Pass::forward, o);
  EXPECT_TRUE(status.ok()) << status.message.chars;
  double loss = 0;
  o.out.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
    const double weight = data.dout.at(b, i, h, d);
    if (std::isfinite(weight)) loss += weight * o.out.at(b, i, h, d);
  });
  if (!data.dlse) return loss;
  o.lse.each([&](int64_t b, int64_t h, int64_t i, int64_t) {
    const double weight = data.dlse.at(b, h, i);
    if (std::isfinite(weight) && std::isfinite(o.lse.at(b, h, i))) loss += weight * o.lse.at(b, h, i);
  });
  return loss;
}

// d loss / d step when all elements of a tensor move, each one step up, down or not at all.
struct Slopes {
  double measured, predicted;
};

Slopes slopes_along(CaseData& data, Stored CaseData::*tensor, const Stored& gradient, uint64_t seed) {
  const Stored start = data.*tensor;
  const auto move = [&](double steps) {
    Random random(seed);
    start.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      (data.*tensor).set(start.at(a, b, c, d) + steps * kStep * static_cast<double>(random.between(-1, 1)), a, b, c, d);
    });
    return loss_of(data);
  };
  Slopes slopes{(8 * (move(1) - move(-1)) - (move(2) - move(-2))) / (12 * kStep), 0};
  data.*tensor = start;
  Random random(seed);
  gradient.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    slopes.predicted += gradient.at(a, b, c, d) * static_cast<double>(random.between(-1, 1));
  });
  return slopes;
}

void check_gradients(const Case& description) {
  SCOPED_TRACE(description.name());
  CaseData data(description);
  for (Stored* t : {&data.q, &data.k, &data.v, &data.bias, &data.sink})
    if (*t) make_exact(*t);
  const Outputs start = data.dense_outputs(Type::f64);
  Outputs exact = start;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Status status = run_exact(data, pass, exact);
    ASSERT_TRUE(status.ok()) << status.message.chars;
  }
  struct Input {
    Stored CaseData::*tensor;
    Stored Outputs::*gradient;
  };
  for (const Input& input : {Input{&CaseData::q, &Outputs::dq},
                             {&CaseData::k, &Outputs::dk},
                             {&CaseData::v, &Outputs::dv},
                             {&CaseData::bias, &Outputs::dbias},
                             {&CaseData::sink, &Outputs::dsink}}) {
    Stored& gradient = exact.*input.gradient;
    if (!gradient) continue;
    gradient.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {  // what TW_GRAD_ACCUMULATE added to
      gradient.set(gradient.at(a, b, c, d) - (start.*input.gradient).at(a, b, c, d), a, b, c, d);
    });
    const Slopes slopes = slopes_along(data, input.tensor, gradient, 5);
    EXPECT_NEAR(slopes.measured, slopes.predicted, 1e-6 * (1 + std::abs(slopes.predicted)));
  }
}

Case small() {
  Case c;
  c.batch = 2, c.seqlen_q = 7, c.seqlen_k = 9, c.heads = 4, c.heads_kv = 2, c.head_dim = 4, c.value_dim = 3;
  return c;
}

TEST(ContractGradients, EachOptionAlone) {
  check_gradients(small());
  for (const Option option : all_options()) {
    Case c = small();
    option(c);
    if (c.backward) check_gradients(c);
  }
}

TEST(ContractGradients, EachPairOfOptions) {
  const auto options = all_options();
  for (size_t a = 0; a < options.size(); ++a) {
    for (size_t b = a + 1; b < options.size(); ++b) {
      Case c = small();
      options[a](c), options[b](c);
      c.seed = 1000 * a + b;
      if (c.backward) check_gradients(c);
    }
  }
}

// A loss on lse alone reaches q and k (and not v).
TEST(ContractGradients, OfLseAlone) {
  Case c = small();
  c.dlse = true, c.causal = true;
  CaseData data(c);
  data.dout.each([&](int64_t a, int64_t b, int64_t h, int64_t d) { data.dout.set(0, a, b, h, d); });
  each_kernel(Pass::backward, [&](const Kernel& kernel) {
    const Outputs o = run(data, kernel);
    double dq = 0;
    o.dq.each([&](int64_t a, int64_t b, int64_t h, int64_t d) { dq += std::abs(o.dq.at(a, b, h, d)); });
    o.dv.each([&](int64_t a, int64_t b, int64_t h, int64_t d) { EXPECT_EQ(o.dv.at(a, b, h, d), 0); });
    EXPECT_GT(dq, 1);
  });
}

}  // namespace
}  // namespace tilewise::cases
