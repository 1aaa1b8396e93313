#include "reports/call.h"

#include "cases/measure.h"

namespace tilewise::reports {

Call::Call(Type type, Sizes s, Layout layout) : sizes(s), type(type) {
  if (sizes.value_dim == 0) sizes.value_dim = sizes.head_dim;
  const Shape rows{s.batch, s.seqlen_q, s.heads, sizes.value_dim}, query{s.batch, s.seqlen_q, s.heads, s.head_dim};
  const Shape keys{s.batch, s.seqlen_k, s.heads_kv, s.head_dim},
      values{s.batch, s.seqlen_k, s.heads_kv, sizes.value_dim};
  q = Stored(type, query, layout), k = Stored(type, keys, layout), v = Stored(type, values, layout);
  out = Stored(type, rows, layout, true), dout = Stored(type, rows, layout);
  dq = Stored(type, query, layout, true), dk = Stored(type, keys, layout, true),
  dv = Stored(type, values, layout, true);
  lse = Stored(Type::f32, {s.batch, s.heads, s.seqlen_q, 1}, Layout::rows_outside, true);
  TW_INIT(a);
  TW_INIT(g);
}

void Call::fill(Stored& t, double value) {
  t.each([&](int64_t x, int64_t y, int64_t z, int64_t w) { t.set(value, x, y, z, w); });
}

void Call::fill_normal(uint64_t seed, double scale) {
  Random random(seed);
  for (Stored* t : {&q, &k, &v, &dout})
    t->each([&](int64_t x, int64_t y, int64_t z, int64_t w) { t->set(scale * random.normal(), x, y, z, w); });
}

Status Call::forward(const char* kernel) { return run(kernel, false); }

Status Call::backward(const char* kernel) { return run(kernel, true); }

double Call::lse_tolerance(double lse) const {
  return lse_type() == Type::f32 ? 1e-6 * std::abs(lse) + 2e-6 : tolerance(type) * std::max(1.0, std::abs(lse));
}

Status Call::run(const char* kernel, bool backward) {
  a.q = q.view(), a.k = k.view(), a.v = v.view(), a.out = out.view(), a.lse = lse.view();
  g.dout = dout.view(), g.dq = dq.view(), g.dk = dk.view(), g.dv = dv.view();
  a.device_type = device_of(kernel);
  rounds_scores_ = names_kernel("cuda.standard", kernel) && type != Type::f32;
  if (adjust) adjust(a, g);
  const tw_attention_grad* grad = backward ? &g : nullptr;
  Problem problem;
  if (Status status = make_problem(a, grad, true, problem); !status.ok()) return status;
  Plan plan;
  return cases::run_problem(problem, {.kernel = kernel}, plan);
}

int32_t device_of(std::string_view kernel) { return kernel.substr(0, 5) == "cuda." ? TW_CUDA : TW_CPU; }

Stored int32s(const std::vector<int64_t>& values) {
  Stored t(Type::i32, {static_cast<int64_t>(values.size()), 1, 1, 1});
  for (size_t i = 0; i < values.size(); ++i) t.set(static_cast<double>(values[i]), static_cast<int64_t>(i));
  return t;
}

Stored floats(const std::vector<double>& values) {
  Stored t(Type::f32, {static_cast<int64_t>(values.size()), 1, 1, 1});
  for (size_t i = 0; i < values.size(); ++i) t.set(values[i], static_cast<int64_t>(i));
  return t;
}

double difference(const Stored& x, const Stored& y) {
  double most = 0;
  x.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    const double p = x.at(a, b, c, d), q = y.at(a, b, c, d);
    if (p == q || (std::isnan(p) && std::isnan(q))) return;
    const double gap = std::abs(p - q);
    most = std::isnan(gap) ? kInf : std::max(most, gap);
  });
  return most;
}

double largest(const Stored& x) {
  double most = 0;
  x.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { most = std::max(most, std::abs(x.at(a, b, c, d))); });
  return most;
}

double tolerance(Type type) { return type == Type::f32 ? 4e-6 : type == Type::f16 ? 4e-3 : 3e-2; }

bool all_finite(const Stored& x) {
  bool all = true;
  x.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { all = all && std::isfinite(x.at(a, b, c, d)); });
  return all;
}

bool same_bits(const Stored& x, const Stored& y) { return x.bytes() == y.bytes(); }

void expect_row(const Call& c, int64_t b, int64_t i, int64_t h, double out, double lse, double allowed) {
  for (int64_t d = 0; d < c.sizes.value_dim; ++d) {
    ASSERT_NEAR(c.out.at(b, i, h, d), out, allowed)
        << "sequence " << b << " row " << i << " head " << h << " dim " << d;
  }
  if (std::isinf(lse)) {
    EXPECT_EQ(c.lse.at(b, h, i), lse) << "lse of row " << i;
  } else {
    EXPECT_NEAR(c.lse.at(b, h, i), lse, c.lse_tolerance(lse)) << "lse of row " << i;
  }
}

void expect_empty_row(const Call& c, int64_t b, int64_t i, int64_t h) { expect_row(c, b, i, h, 0, -kInf, 0); }

void expect_mean(const Call& c, int64_t b, int64_t i, int64_t h, int64_t lo, int64_t hi, double score) {
  const int64_t kv = h / (c.sizes.heads / c.sizes.heads_kv);
  for (int64_t d = 0; d < c.sizes.value_dim; ++d) {
    double sum = 0, most = 0;
    for (int64_t j = lo; j < hi; ++j) {
      sum += c.v.at(b, j, kv, d);
      most = std::max(most, std::abs(c.v.at(b, j, kv, d)));
    }
    ASSERT_NEAR(c.out.at(b, i, h, d), sum / static_cast<double>(hi - lo), tolerance(c.type) * most)
        << "row " << i << " head " << h << " dim " << d;
  }
  const double lse = score + std::log(static_cast<double>(hi - lo));
  EXPECT_NEAR(c.lse.at(b, h, i), lse, c.lse_tolerance(lse)) << "lse of row " << i;
}

void expect_like_reference(Call& c, const char* kernel, bool backward) {
  Call want = c;
  ASSERT_TRUE(want.forward("reference").ok());
  RUN_OR_SKIP(c.forward(kernel));
  const auto compare = [&](const char* name, const Stored& got, const Stored& expected, Type exact_as) {
    EXPECT_LE(difference(got, expected), tolerance(exact_as) * std::max(1.0, largest(expected))) << name;
    EXPECT_TRUE(got.gaps_are_untouched()) << name << " written outside of its elements";
  };
  compare("out", c.out, want.out, c.out.type());
  compare("lse", c.lse, want.lse, c.lse_type());
  if (!backward) return;
  c.out = want.out, c.lse = want.lse;
  ASSERT_TRUE(want.backward("reference").ok());
  RUN_OR_SKIP(c.backward(kernel));
  compare("dq", c.dq, want.dq, c.dq.type()), compare("dk", c.dk, want.dk, c.dk.type());
  compare("dv", c.dv, want.dv, c.dv.type());
}

void expect_bad_number(const Status& status, const char* tensor) {
  EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
  const std::string_view message = status.message.chars;
  EXPECT_TRUE(message.find(tensor) != message.npos || message.substr(0, 5) == "fault") << message;
}

std::vector<std::string> kernels_here() {
  std::vector<std::string> names;
  for (const int32_t device_type : {TW_CPU, TW_CUDA}) {
    for (const Kernel* kernel : kernels(device_type)) {
      Text why_not;
      if (kernel->pass != Pass::forward || !kernel->runs_on(0, why_not)) continue;
      const std::string_view name = kernel->name;
      names.emplace_back(name.substr(0, name.rfind('.')));  // without ".forward": the name of the backward, too
    }
  }
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}

}  // namespace tilewise::reports
