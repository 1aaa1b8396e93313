#include "cases/rounding.h"

#include "cpu/reference/row.h"

namespace tilewise::cases {
namespace {

using Row = cpu::reference::Row<double>;
using Numbers = std::vector<double>;

constexpr double kUlp = 0x1p-24;
constexpr double kSlopeUlps = 3;  // softcap's slope is 1 - t^2: t is rounded, which counts twice, and so is its square

double ulp_of(Type type) { return type == Type::bf16 ? 0x1p-9 : type == Type::f16 ? 0x1p-12 : 0; }

double sum_of_sizes(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] * b[i]);
  return sum;
}

double sum_of_products(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void read(const Tensor& t, int64_t offset, Numbers& numbers) {
  numbers.resize(static_cast<size_t>(t.shape[3]));
  cpu::read_values(t, offset, t.shape[3], numbers.data());
}

// to[d] += factor * |x[d]|, at an offset of a dense fp64 tensor; an absent one takes nothing.
void add_sizes(const Tensor& to, int64_t offset, double factor, const Numbers& x) {
  if (!to) return;
  double* place = reinterpret_cast<double*>(to.data) + offset;
  for (size_t d = 0; d < x.size(); ++d) place[d] += factor * std::abs(x[d]);
}

class Bound {
 public:
  Bound(const Problem& problem, double unit, const Outputs& bound)
      : problem_(problem),
        unit_(unit),
        out_ulp_(ulp_of(problem.dout.type)),
        out_(bound.out.tensor()),
        lse_(bound.lse.tensor()),
        dq_(bound.dq.tensor()),
        dk_(bound.dk.tensor()),
        dv_(bound.dv.tensor()),
        dbias_(bound.dbias.tensor()),
        dsink_(bound.dsink.tensor()) {}

  void run() const {
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence s = sequence_of(problem_, b);
      for (int64_t h = 0; h < problem_.heads; ++h)
        for (int64_t i = 0; i < s.rows; ++i) {
          const Row row(problem_, s, h, i, Type::f64);
          problem_.pass == Pass::forward ? forward(row) : backward(row);
        }
    }
  }

 private:
  struct Pair {
    Numbers k, v;
    cpu::reference::Score<double> score;
    double p;         // with dropout's factor left out
    double exponent;  // by how much it may be off, relative to p
  };

  template <class F>
  void each_pair(const Row& row, const Numbers& q, double lse, F f) const {
    const Sequence& s = row.sequence;
    const int64_t kv = row.h / problem_.group();
    Pair pair;
    for (int64_t j = row.live.lo; j < row.live.hi; ++j) {
      if (!row.uses(j)) continue;
      read(problem_.k, key_offset(problem_.k, s, j, kv), pair.k);
      read(problem_.v, key_offset(problem_.v, s, j, kv), pair.v);
      pair.score = row.score(q.data(), pair.k.data(), j);
      pair.p = std::exp(pair.score.value - lse);
      const double product = std::abs(problem_.softmax_scale) * sum_of_sizes(q, pair.k) * pair.score.slope;
      const double distance = std::abs(static_cast<double>(row.position - key_position(problem_, s, j)));
      const double terms = product + std::abs(row.bias(j)) + std::abs(row.alibi_slope) * distance;
      pair.exponent = kUlp * (terms + std::abs(pair.score.value));
      f(j, kv, pair);
    }
  }

  // Of lse and the tensors like it.
  static double number_of(const Tensor& t, const Row& row) {
    return cpu::read_value<double>(t, lse_offset(t, row.sequence, row.i, row.h));
  }

  static Numbers row_of(const Tensor& t, const Row& row) {
    Numbers numbers;
    read(t, row_offset(t, row.sequence, row.i, row.h), numbers);
    return numbers;
  }

  void forward(const Row& row) const {
    const double lse = number_of(problem_.lse, row);
    if (lse == -INFINITY) return;
    const Numbers q = row_of(problem_.q, row);
    const int64_t out_offset = row_offset(out_, row.sequence, row.i, row.h);
    double of_sum = 0;  // how far the sum of exponentials may be off, relative
    each_pair(row, q, lse, [&](int64_t, int64_t, const Pair& pair) { of_sum += pair.p * pair.exponent; });
    reinterpret_cast<double*>(lse_.data)[lse_offset(lse_, row.sequence, row.i, row.h)] += of_sum;
    if (problem_.prior_lse) of_sum += kUlp * std::abs(lse);
    each_pair(row, q, lse, [&](int64_t j, int64_t, const Pair& pair) {
      const double share = unit_ + pair.exponent + of_sum;
      add_sizes(out_, out_offset, pair.p * row.dropout_factor(j) * share, pair.v);
    });
    if (!problem_.prior_lse) return;
    const double prior = number_of(problem_.prior_lse, row);
    if (prior == -INFINITY) return;
    add_sizes(out_, out_offset, std::exp(prior - lse) * (unit_ + of_sum), row_of(problem_.prior_out, row));
  }

  void backward(const Row& row) const {
    const double lse = number_of(problem_.lse, row);
    if (lse == -INFINITY) return;
    const Sequence& s = row.sequence;
    const Numbers q = row_of(problem_.q, row), out = row_of(problem_.out, row), dout = row_of(problem_.dout, row);
    const double dlse = problem_.dlse ? number_of(problem_.dlse, row) : 0;
    const double shift = dlse - sum_of_products(dout, out), delta_size = sum_of_sizes(dout, out);
    const double shift_off = unit_ * (std::abs(dlse) + delta_size) + out_ulp_ * delta_size;
    const double of_lse = kUlp * std::abs(lse);
    each_pair(row, q, lse, [&](int64_t j, int64_t kv, const Pair& pair) {
      const double z = row.dropout_factor(j), ds = pair.p * (z * sum_of_products(dout, pair.v) + shift);
      const double p_off = of_lse + pair.exponent;
      const double ds_off = pair.p * (unit_ * z * sum_of_sizes(dout, pair.v) + shift_off) + p_off * std::abs(ds);
      const double slope_off = kSlopeUlps * kUlp * (1 - pair.score.slope);
      const double dqk_off = (ds_off * pair.score.slope + std::abs(ds) * slope_off) * std::abs(problem_.softmax_scale);
      add_sizes(dq_, row_offset(dq_, s, row.i, row.h), dqk_off, pair.k);
      add_sizes(dk_, key_offset(dk_, s, j, kv), dqk_off, q);
      add_sizes(dv_, key_offset(dv_, s, j, kv), pair.p * z * (unit_ + p_off), dout);
      add_sizes(dbias_, dbias_.offset(s.index, row.h, row.i, j), ds_off, {1});
    });
    if (!problem_.sink) return;
    const double p = std::exp(cpu::read_value<double>(problem_.sink, problem_.sink.offset(row.h, 0, 0)) - lse);
    add_sizes(dsink_, row.h, p * (shift_off + of_lse * std::abs(shift)), {1});
  }

  const Problem& problem_;
  const double unit_, out_ulp_;
  const Tensor out_, lse_, dq_, dk_, dv_, dbias_, dsink_;
};

}  // namespace

void bound_rounding(const Problem& problem, double unit, const Outputs& bound) { Bound(problem, unit, bound).run(); }

}  // namespace tilewise::cases
