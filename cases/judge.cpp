#include <cmath>
#include <cstdio>

#include "cases/measure.h"

namespace tilewise::cases {
namespace {

constexpr double kNothing = 1e-30;  // exponentials of fp32 end near 1e-38

std::string text_of(int64_t a, int64_t b, int64_t c, int64_t d, double got, double want) {
  char text[160];
  std::snprintf(text, sizeof text, "element (%lld,%lld,%lld,%lld) is %g, must be %g", static_cast<long long>(a),
                static_cast<long long>(b), static_cast<long long>(c), static_cast<long long>(d), got, want);
  return text;
}

struct Errors {
  double largest = 0, error = 0, standard_error = 0;
  std::string trouble;
};

Errors errors_of(const Stored& got, const Stored& exact, const Stored& standard) {
  Errors e;
  got.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    const double x = got.at(a, b, c, d), want = exact.at(a, b, c, d), plain = standard.at(a, b, c, d);
    if (!std::isfinite(want) || !std::isfinite(x)) {
      if (x == want || (std::isnan(x) && std::isnan(want)) || !e.trouble.empty()) return;
      e.trouble = text_of(a, b, c, d, x, want);
      return;
    }
    e.largest = std::max(e.largest, std::abs(want));
    e.error = std::max(e.error, std::abs(x - want));
    if (std::isfinite(plain)) e.standard_error = std::max(e.standard_error, std::abs(plain - want));
  });
  return e;
}

double largest(const Stored& t) {
  double most = 0;
  t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { most = std::max(most, std::abs(t.at(a, b, c, d))); });
  return most;
}

// ---- Contract C1, to the bit: what no row or key of the case reaches is as it was before the call, or 0 (lse: -inf).

// A mark for each (slot, token, head).
struct Marks {
  Shape shape;
  std::vector<char> marks;

  explicit Marks(const Shape& shape) : shape(shape), marks(static_cast<size_t>(shape[0] * shape[1] * shape[2])) {}
  char& at(int64_t slot, int64_t token, int64_t head) { return marks[(slot * shape[1] + token) * shape[2] + head]; }
};

Marks live_rows(const CaseData& data, Pass pass) {
  const Case& c = data.description();
  Marks marks(data.q.shape());
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.rows(b); ++i)
      for (int64_t h = 0; h < c.heads; ++h) {
        const bool has_result = pass == Pass::forward && (c.prior || c.sink);
        marks.at(data.q_slot(b), data.q_row(b, i), h) = has_result || !data.range(b, h, i).empty();
      }
  return marks;
}

Marks live_keys(const CaseData& data) {
  const Case& c = data.description();
  Marks marks(data.k.shape());
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t j = 0; j < c.keys(b); ++j)
      for (int64_t kv = 0; kv < c.heads_kv; ++kv) {
        if (data.key_counts(b, kv, j)) marks.at(data.k_slot(b), data.k_row(b, j), kv) = 1;
      }
  return marks;
}

std::string dead_elements(const CaseData& data, Stored Outputs::*output, const Stored& got) {
  const bool is_lse = output == &Outputs::lse, of_rows = is_lse || output == &Outputs::out || output == &Outputs::dq;
  if (!of_rows && output != &Outputs::dk && output != &Outputs::dv) return {};
  const Pass pass = output == &Outputs::dq ? Pass::backward : Pass::forward;
  Marks live = of_rows ? live_rows(data, pass) : live_keys(data);
  const Outputs before = data.dense_outputs({});
  std::string trouble;
  got.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    const double x = got.at(a, b, c, d), want = (before.*output).at(a, b, c, d);
    const bool is_live = is_lse ? live.at(a, c, b) : live.at(a, b, c);
    if (!is_live && x != want && trouble.empty()) trouble = text_of(a, b, c, d, x, want);
  });
  return trouble;
}

}  // namespace

double rounding_unit(const CaseData& data) { return data.description().type == Type::f32 ? 1e-6 : 1e-5; }

std::string Verdict::text() const {
  char line[320];
  std::snprintf(line, sizeof line, "%s: error %.3g, allowed %.3g%s%s", output, error, allowed,
                trouble.empty() ? "" : "; ", trouble.c_str());
  return line;
}

std::vector<Verdict> judge(const CaseData& data, const Expected& expected, Pass pass, const Outputs& outputs) {
  std::vector<Verdict> verdicts;
  for (const auto& [name, output] : outputs_of(pass)) {
    const Stored& got = outputs.*output;
    if (!got || (output == &Outputs::lse && !data.description().lse)) continue;
    const Errors e = errors_of(got, expected.exact.*output, expected.standard.*output);
    Verdict verdict{name, e.error, 0, e.trouble};
    // An lse is the logarithm of a sum whose relative error it shows: its unit is 1 at least.
    const double unit = output == &Outputs::lse ? std::max(e.largest, 1.0) : e.largest;
    verdict.allowed = 2 * e.standard_error + rounding_unit(data) * unit + largest(expected.rounding.*output) + kNothing;
    if (verdict.trouble.empty()) verdict.trouble = dead_elements(data, output, got);
    if (!got.gaps_are_untouched()) verdict.trouble += "bytes outside its elements were written";
    verdicts.push_back(verdict);
  }
  return verdicts;
}

}  // namespace tilewise::cases
