#include "cases/fills.h"

#include <cmath>

namespace tilewise::cases {
namespace {

constexpr double kPeak = 5000, kStep = 40;
constexpr int64_t kStretch = 32;

double lowest(Type type) { return type == Type::f16 ? -6e4 : -1e30; }

// The size of elements of q and -k that makes scores -100.
double negative_size(const Case& c) {
  const double scale = c.scale ? std::abs(*c.scale) : 1 / std::sqrt(static_cast<double>(c.head_dim));
  return scale > 0 ? std::sqrt(100 / (scale * static_cast<double>(c.head_dim))) : 1;
}

}  // namespace

double query_element(const Case& c, int64_t d, double normal) {
  switch (c.fill) {
    case Fill::zero_query:
      return 0;
    case Fill::lowest:
    case Fill::late_maximum:
    case Fill::early_maximum:
    case Fill::rising:
    case Fill::falling:
      return d == 0;  // the score of a key is its first element
    case Fill::negative:
      return -negative_size(c);
    case Fill::huge:
      return 100 * normal;
    default:
      return normal;
  }
}

double key_element(const Case& c, int64_t j, int64_t keys, int64_t d, double normal) {
  const bool first = d == 0;
  const double stretch = static_cast<double>(j / kStretch), from_last = static_cast<double>((keys - 1 - j) / kStretch);
  switch (c.fill) {
    case Fill::equal_keys:
      return d % 2 == 0 ? 0.75 : -0.5;
    case Fill::lowest:
      return first ? lowest(c.type) : normal;
    case Fill::late_maximum:
      return first && j == keys - 1 ? kPeak : normal;
    case Fill::early_maximum:
      return first && j == 0 ? kPeak : normal;
    case Fill::rising:
      return first ? normal + kStep * stretch : normal;
    case Fill::falling:
      return first ? normal + kStep * from_last : normal;
    case Fill::negative:
      return negative_size(c) * (1 + 0.02 * normal);
    default:
      return normal;
  }
}

double value_element(const Case& c, int64_t j, int64_t d, double normal) {
  if (c.fill == Fill::ones_value) return 1;
  if (c.fill == Fill::one_hot_value) return d == j % c.value_dim;
  return normal;
}

}  // namespace tilewise::cases
