// A backward call with its memory, and what its gradients are compared by.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "cases/measure.h"
#include "cpu/common/element_values.h"

namespace tilewise::backward {

struct Shape {
  int64_t batch, rows, keys, heads, heads_kv, dim, value_dim;
};

// One call with its memory: inputs at random, gradients NaN until written.
struct Call {
  Shape shape;
  int32_t type;
  tw_attention a = {};
  tw_attention_grad g = {};
  std::deque<std::vector<char>> memory;
  std::mt19937 random{1};

  explicit Call(const Shape& s, int32_t type = TW_F32) : shape(s), type(type) {
    TW_INIT(a);
    TW_INIT(g);
    a.device_type = TW_CPU;
    a.q = uniform(type, s.batch, s.rows, s.heads, s.dim);
    a.k = uniform(type, s.batch, s.keys, s.heads_kv, s.dim);
    a.v = uniform(type, s.batch, s.keys, s.heads_kv, s.value_dim);
    a.out = filled(type, 0, s.batch, s.rows, s.heads, s.value_dim);
    a.lse = filled(TW_F32, 0, s.batch, s.heads, s.rows, 1);
    g.dout = uniform(type, s.batch, s.rows, s.heads, s.value_dim);
    g.dq = filled(type, NAN, s.batch, s.rows, s.heads, s.dim);
    g.dk = filled(type, NAN, s.batch, s.keys, s.heads_kv, s.dim);
    g.dv = filled(type, NAN, s.batch, s.keys, s.heads_kv, s.value_dim);
  }

  template <class F>
  tw_tensor made(int32_t dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3, F value) {
    Tensor t;
    t.type = static_cast<Type>(dtype);
    const int64_t count = n0 * n1 * n2 * n3;
    t.data = memory.emplace_back(count * size_of(t.type) + 1).data();
    for (int64_t i = 0; i < count; ++i) {
      const float x = value(i);
      if (dtype == TW_I32) reinterpret_cast<int32_t*>(t.data)[i] = static_cast<int32_t>(x);
      cpu::write_values(t, i, 1, &x);
    }
    return tw_tensor_of(t.data, dtype, n0, n1, n2, n3);
  }
  tw_tensor filled(int32_t dtype, float x, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    return made(dtype, n0, n1, n2, n3, [x](int64_t) { return x; });
  }
  tw_tensor uniform(int32_t dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    std::uniform_real_distribution<float> draw(-1, 1);
    return made(dtype, n0, n1, n2, n3, [&](int64_t) { return draw(random); });
  }
};

struct NamedGradient {
  const char* name;
  std::vector<float> values;
};
using Gradients = std::vector<NamedGradient>;

inline Problem problem_of(const Call& call, bool backward) {
  Problem problem;
  const Status status = make_problem(call.a, backward ? &call.g : nullptr, true, problem);
  EXPECT_TRUE(status.ok()) << status.message.chars;
  return problem;
}

inline Plan plan_of(const Problem& problem, const char* kernel) {
  Plan plan;
  PlanOptions options;
  options.force = kernel;
  const Status status = make_plan(problem, options, plan);
  EXPECT_TRUE(status.ok()) << status.message.chars;
  return plan;
}

inline void run(const Problem& problem, const char* kernel) {
  Plan plan;
  const Status status = cases::run_problem(problem, {.kernel = kernel}, plan);
  EXPECT_TRUE(status.ok()) << status.message.chars;
}

inline std::vector<float> values_of(const tw_tensor& t) {
  std::vector<float> values(t.dtype == TW_NONE ? 0 : t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]);
  Tensor view;
  view.type = static_cast<Type>(t.dtype), view.data = static_cast<char*>(t.data);
  cpu::read_values(view, 0, static_cast<int64_t>(values.size()), values.data());
  return values;
}

// What was there before is gone, so that an element left unwritten shows.
inline void poison(const tw_tensor& t) {
  Tensor view;
  view.type = static_cast<Type>(t.dtype), view.data = static_cast<char*>(t.data);
  const std::vector<float> values(values_of(t).size(), NAN);
  cpu::write_values(view, 0, static_cast<int64_t>(values.size()), values.data());
}

inline Gradients gradients_by(const Call& call, const char* kernel) {
  if (!(call.g.flags & TW_GRAD_ACCUMULATE))
    for (const tw_tensor& t : {call.g.dq, call.g.dk, call.g.dv, call.g.dbias, call.g.dsink}) poison(t);
  run(problem_of(call, true), kernel);
  return {{"dq", values_of(call.g.dq)},
          {"dk", values_of(call.g.dk)},
          {"dv", values_of(call.g.dv)},
          {"dbias", values_of(call.g.dbias)},
          {"dsink", values_of(call.g.dsink)}};
}

// Within `tolerance` of the largest value.
inline void expect_close(const Gradients& ours, const Gradients& theirs, double tolerance) {
  for (size_t t = 0; t < ours.size(); ++t) {
    const std::vector<float>&x = ours[t].values, &y = theirs[t].values;
    ASSERT_EQ(x.size(), y.size()) << ours[t].name;
    double largest = 0.05, worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::isnan(x[i]), std::isnan(y[i])) << ours[t].name << " at " << i;
      if (std::isnan(x[i])) continue;
      largest = std::max(largest, std::fabs(double{y[i]}));
      worst = std::max(worst, std::fabs(double{x[i]} - y[i]));
    }
    EXPECT_LE(worst, tolerance * largest) << ours[t].name << ", largest " << largest;
  }
}

inline void expect_same_bits(const Gradients& ours, const Gradients& theirs) {
  for (size_t t = 0; t < ours.size(); ++t) {
    ASSERT_EQ(ours[t].values.size(), theirs[t].values.size());
    if (ours[t].values.empty()) continue;
    EXPECT_EQ(std::memcmp(ours[t].values.data(), theirs[t].values.data(), ours[t].values.size() * sizeof(float)), 0)
        << ours[t].name;
  }
}

// ---- Options.

inline void set_bias(Call& c) {
  c.a.bias = c.uniform(TW_F32, c.shape.batch, c.shape.heads, c.shape.rows, c.shape.keys);
  c.g.dbias = c.filled(TW_F32, NAN, c.shape.batch, c.shape.heads, c.shape.rows, c.shape.keys);
}
inline void set_sink(Call& c) {
  c.a.sink = c.uniform(TW_F32, c.shape.heads, 1, 1, 1);
  c.g.dsink = c.filled(TW_F32, NAN, c.shape.heads, 1, 1, 1);
}
inline void set_window(Call& c) {
  c.a.flags = TW_WINDOW_LEFT | TW_WINDOW_RIGHT;
  c.a.window_left = 2, c.a.window_right = 1;
}

}  // namespace tilewise::backward
