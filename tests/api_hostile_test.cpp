// Hostile input: random structs at planning, random numbers in memory at running. Never a crash; with the sanitizers,
// never an overflow; after an error, outputs as they were. The seed of a failure is printed.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "api_call.h"

namespace tilewise::test {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t count) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count)); }
  bool one_in(int64_t count) { return below(count) == 0; }

  int64_t number() {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
    constexpr int64_t kNumbers[] = {0,         1,         2,        3,        5,        7,         8,
                                    64,        512,       513,      -1,       -2,       1 << 16,   70000,
                                    1ll << 31, 1ll << 32, kMax,     kMin,     1 << 20,  1ll << 47, 1ll << 48,
                                    1ll << 62, kMax - 1,  kMax / 4, kMin + 1, -kMax / 8};
    return kNumbers[below(std::size(kNumbers))];
  }
  float real() {
    const float kReals[] = {0,
                            1,
                            -1,
                            0.5f,
                            1e-30f,
                            1e30f,
                            std::numeric_limits<float>::infinity(),
                            -0.0f,
                            0.99999999f,
                            std::numeric_limits<float>::quiet_NaN(),
                            0.999f,
                            30};
    return kReals[below(std::size(kReals))];
  }

 private:
  std::mt19937_64 engine_;
};

// The tensors of a struct follow each other, so that every one can be reached.
template <class Struct>
std::vector<tw_tensor*> tensors_of(Struct& s, tw_tensor& first, tw_tensor& last) {
  std::vector<tw_tensor*> tensors;
  for (tw_tensor* t = &first; t <= &last; ++t) tensors.push_back(t);
  EXPECT_LE(reinterpret_cast<char*>(&last + 1), reinterpret_cast<char*>(&s + 1));
  return tensors;
}

std::vector<tw_tensor*> tensors_of(tw_attention& a) {
  std::vector<tw_tensor*> all = tensors_of(a, a.q, a.block_table);
  for (auto& [first, last] : {std::pair{&a.q_scale, &a.v_scale},
                              {&a.bias, &a.alibi_slopes},
                              {&a.mask, &a.sink},
                              {&a.dropout_state, &a.prior_lse}}) {
    for (tw_tensor* t : tensors_of(a, *first, *last)) all.push_back(t);
  }
  return all;
}

void hit_tensor(Dice& dice, tw_tensor& t) {
  switch (dice.below(4)) {
    case 0:
      t.shape[dice.below(4)] = dice.number();
      break;
    case 1:
      t.stride[dice.below(4)] = dice.number();
      break;
    case 2:
      t.dtype = static_cast<int32_t>(dice.below(12)) - 1;
      break;
    default:
      for (int axis = 0; axis < 4; ++axis) t.shape[axis] = dice.one_in(2) ? 1 : t.shape[axis];
      t.dtype = dice.one_in(2) ? TW_F32 : TW_I32;
  }
}

void hit_number(Dice& dice, tw_attention& a) {
  int64_t* const wide[] = {&a.max_seqlen_q, &a.max_seqlen_k, &a.window_left, &a.window_right, &a.attention_chunk};
  int32_t* const narrow[] = {&a.device_type, &a.device_index, &a.threads, &a.sm_margin, &a.num_splits, &a.reserved};
  float* const reals[] = {&a.softmax_scale, &a.softcap, &a.dropout_p};
  switch (dice.below(4)) {
    case 0:
      *wide[dice.below(std::size(wide))] = dice.number();
      break;
    case 1:
      *narrow[dice.below(std::size(narrow))] = static_cast<int32_t>(dice.number());
      break;
    case 2:
      *reals[dice.below(std::size(reals))] = dice.real();
      break;
    default:
      a.flags ^= 1u << dice.below(11);
  }
}

void without_data(tw_attention& a) {
  for (tw_tensor* t : tensors_of(a)) t->data = nullptr;
}

// A richer call, so that one hit more often meets a rule of two fields.
void add_options(Dice& dice, Call& c) {
  if (dice.one_in(2)) c.a.bias = c.extra(TW_F32, 1, 4, 3, 5);
  if (dice.one_in(2)) c.a.mask = c.extra(TW_BOOL, 2, 1, 1, 5);
  if (dice.one_in(3)) c.a.key_begin = c.a.key_end = c.extra(TW_I32, 2, 1, 3);
  if (dice.one_in(3)) c.a.q_positions = c.extra(TW_I32, 1, 3), c.a.k_positions = c.extra(TW_I32, 2, 5);
  if (dice.one_in(3)) c.a.seqused_q = c.a.seqused_k = c.extra(TW_I32, 2);
  if (dice.one_in(4)) {
    for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse}) t->shape[0] = 1;
    c.a.cu_seqlens_q = c.a.cu_seqlens_k = c.extra(TW_I32, 3);
  }
  if (dice.one_in(3)) c.a.flags |= TW_CAUSAL;
  if (dice.one_in(4)) c.a.sink = c.extra(TW_F32, 4);
}

TEST(Hostile, RandomStructsAtPlanning) {
  int64_t accepted = 0;
  for (uint64_t seed = 0; seed < 30000; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    Call c;
    add_options(dice, c);
    const std::vector<tw_tensor*> tensors = tensors_of(c.a);
    for (int64_t hits = 1 + dice.below(3); hits > 0; --hits) {
      if (dice.one_in(3)) {
        hit_number(dice, c.a);
      } else {
        hit_tensor(dice, *tensors[static_cast<size_t>(dice.below(static_cast<int64_t>(tensors.size())))]);
      }
    }
    without_data(c.a);
    c.a.threads = std::min(c.a.threads, 64);
    tw_plan plan;
    char text[512];
    const tw_attention_grad* const passes[] = {nullptr, &c.g};
    for (const tw_attention_grad* grad : passes) {
      const tw_status status = tw_attention_plan(&c.a, grad, &plan);
      accepted += status == TW_OK;
      const bool is_of_gpu = status == TW_DEVICE_ERROR && c.a.device_type == TW_CUDA;
      ASSERT_TRUE(status == TW_OK || status == TW_INVALID_ARGUMENT || status == TW_UNSUPPORTED || is_of_gpu);
      ASSERT_TRUE(status == TW_OK || tw_last_error()[0] != 0);
    }
    tw_attention_explain(&c.a, nullptr, text, sizeof text);
  }
  EXPECT_GT(accepted, 3000) << "the test should also reach what comes after the rules";
}

TEST(Hostile, RandomNumbersInMemory) {
  int64_t accepted = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    Call c;
    std::vector<int32_t> numbers(64);
    for (int32_t& x : numbers)
      x = dice.one_in(8) ? static_cast<int32_t>(dice.number()) : static_cast<int32_t>(dice.below(6));
    const auto table = [&](int64_t at, int64_t n0, int64_t n1 = 1, int64_t n2 = 1) {
      return tw_tensor_of(numbers.data() + at, TW_I32, n0, n1, n2, 1);
    };
    const bool packed = dice.one_in(3);
    if (packed) {
      for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse, &c.g.dout, &c.g.dq, &c.g.dk, &c.g.dv}) {
        t->shape[0] = 1;
      }
      if (dice.one_in(2)) numbers[0] = numbers[3] = 0;
      c.a.cu_seqlens_q = table(0, 3), c.a.cu_seqlens_k = table(3, 3);
    }
    if (dice.one_in(2)) c.a.seqused_q = table(6, 2);
    if (dice.one_in(2)) c.a.seqused_k = table(8, 2);
    if (dice.one_in(3)) c.a.leftpad_k = table(10, 2);
    if (dice.one_in(3)) c.a.key_begin = table(12, packed ? 1 : 2, 1, 3);
    if (dice.one_in(3)) c.a.key_end = table(20, 1, 1, 3);
    if (dice.one_in(3)) c.a.q_positions = table(24, 1, 3);
    if (dice.one_in(4) && c.a.q_positions.dtype) c.a.k_positions = table(28, 1, 5);
    const bool indexed = !packed && dice.one_in(4);
    if (indexed) c.a.batch_index_k = table(40, 2);
    if (dice.one_in(2)) c.a.flags |= TW_CAUSAL;
    if (dice.one_in(4)) c.a.attention_chunk = 2;
    const tw_status forward = c.forward();
    accepted += forward == TW_OK;
    ASSERT_TRUE(forward == TW_OK || forward == TW_INVALID_ARGUMENT) << tw_last_error();
    ASSERT_TRUE(forward == TW_OK || c.forward_is_untouched());
    if (indexed) continue;
    const tw_status backward = c.backward();
    ASSERT_EQ(backward, forward) << tw_last_error();
    ASSERT_TRUE(backward == TW_OK || c.backward_is_untouched());
  }
  EXPECT_GT(accepted, 300);
}

}  // namespace
}  // namespace tilewise::test
