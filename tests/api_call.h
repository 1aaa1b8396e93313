// A small legal call of the C interface to start from, with memory that shows what was written.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tilewise/tilewise.h"

namespace tilewise::test {

inline constexpr float kUntouched = -777.0f;

// B = 2, Sq = 3, Sk = 5, H = 4, Hk = 2, D = 8, Dv = 6, fp32, dense.
struct Call {
  static constexpr int64_t kB = 2, kSq = 3, kSk = 5, kH = 4, kHk = 2, kD = 8, kDv = 6;

  tw_attention a;
  tw_attention_grad g;
  std::vector<float> q = numbers(kB * kSq * kH * kD, 1), k = numbers(kB * kSk * kHk * kD, 2);
  std::vector<float> v = numbers(kB * kSk * kHk * kDv, 3), dout = numbers(kB * kSq * kH * kDv, 4);
  std::vector<float> out = untouched(kB * kSq * kH * kDv), lse = untouched(kB * kH * kSq);
  std::vector<float> dq = untouched(kB * kSq * kH * kD), dk = untouched(kB * kSk * kHk * kD);
  std::vector<float> dv = untouched(kB * kSk * kHk * kDv);
  std::vector<float> spare = std::vector<float>(4096);  // memory for one more tensor

  Call() {
    TW_INIT(a);
    a.device_type = TW_CPU;
    a.q = tw_tensor_of(q.data(), TW_F32, kB, kSq, kH, kD);
    a.k = tw_tensor_of(k.data(), TW_F32, kB, kSk, kHk, kD);
    a.v = tw_tensor_of(v.data(), TW_F32, kB, kSk, kHk, kDv);
    a.out = tw_tensor_of(out.data(), TW_F32, kB, kSq, kH, kDv);
    a.lse = tw_tensor_of(lse.data(), TW_F32, kB, kH, kSq, 1);
    TW_INIT(g);
    g.dout = tw_tensor_of(dout.data(), TW_F32, kB, kSq, kH, kDv);
    g.dq = tw_tensor_of(dq.data(), TW_F32, kB, kSq, kH, kD);
    g.dk = tw_tensor_of(dk.data(), TW_F32, kB, kSk, kHk, kD);
    g.dv = tw_tensor_of(dv.data(), TW_F32, kB, kSk, kHk, kDv);
  }
  Call(const Call&) = delete;

  tw_status forward() { return tw_attention_forward(&a, nullptr); }
  tw_status backward() { return tw_attention_backward(&a, &g, nullptr); }

  // The tensor of `type` over the spare memory.
  tw_tensor extra(int32_t type, int64_t n0, int64_t n1 = 1, int64_t n2 = 1, int64_t n3 = 1) {
    return tw_tensor_of(spare.data(), type, n0, n1, n2, n3);
  }
  template <class T>
  tw_tensor extra(int32_t type, const std::vector<T>& values) {
    std::memcpy(spare.data(), values.data(), values.size() * sizeof(T));
    return tw_tensor_of(spare.data(), type, static_cast<int64_t>(values.size()), 1, 1, 1);
  }

  bool forward_is_untouched() const { return all_untouched(out) && all_untouched(lse); }
  bool backward_is_untouched() const { return all_untouched(dq) && all_untouched(dk) && all_untouched(dv); }

  static std::vector<float> numbers(int64_t count, uint32_t seed) {
    std::vector<float> values(static_cast<size_t>(count));
    uint32_t state = seed * 2654435761u;
    for (float& x : values) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
    }
    return values;
  }
  static std::vector<float> untouched(int64_t count) {
    return std::vector<float>(static_cast<size_t>(count), kUntouched);
  }
  static bool all_untouched(const std::vector<float>& values) {
    for (float x : values) {
      if (x != kUntouched) return false;
    }
    return true;
  }
};

inline bool last_error_has(const char* part) { return std::strstr(tw_last_error(), part) != nullptr; }

}  // namespace tilewise::test
