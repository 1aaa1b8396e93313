// One step of training: causal attention in which 8 query heads share 2 key/value heads, forward and backward. The
// memory is (B,H,S,D), as models often have it; Tilewise takes (B,S,H,D), which is a view of the same.
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <tilewise/tilewise.hpp>
#include <vector>

namespace {

constexpr int B = 2, S = 100, H = 8, Hk = 2, D = 64;

std::vector<float> random_values(std::size_t count) {
  static std::mt19937 generator(1);
  std::uniform_real_distribution<float> from_minus_one_to_one(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = from_minus_one_to_one(generator);
  return values;
}

// A view of (B,heads,S,D) memory.
tilewise::TensorView view(std::vector<float>& memory, int heads) {
  return tilewise::TensorView(memory, B, heads, S, D).swapped(1, 2);
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

int train() {
  std::vector<float> q = random_values(B * H * S * D), k = random_values(B * Hk * S * D);
  std::vector<float> v = random_values(B * Hk * S * D), dout = random_values(B * H * S * D);
  std::vector<float> out(q.size()), lse(B * H * S), dq(q.size()), dk(k.size()), dv(v.size());

  const tilewise::Attention attention{.q = view(q, H),
                                      .k = view(k, Hk),
                                      .v = view(v, Hk),
                                      .out = view(out, H),
                                      .lse = {lse, B, H, S},  // what the backward needs besides out
                                      .causal = true};
  tilewise::forward(attention).or_throw();
  tilewise::backward(attention,  // the same problem: no option gets lost
                     {.dout = view(dout, H), .dq = view(dq, H), .dk = view(dk, Hk), .dv = view(dv, Hk)})
      .or_throw();

  // Out is linear in v: a step along dv must raise sum(out * dout) by |dv|^2.
  const double before = dot(out, dout);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] += dv[i];
  tilewise::forward(attention).or_throw();
  const double rise = dot(out, dout) - before, slope = dot(dv, dv);
  std::printf("a step along dv: %.4f by the gradient, %.4f by two forwards\n", slope, rise);
  return std::abs(rise - slope) < 1e-3 * slope ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
