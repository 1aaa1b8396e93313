// Structs of another age: what an older caller lacks is zero and never read; what a newer one adds must be zero.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>

#include "api_call.h"

namespace tilewise::test {
namespace {

constexpr size_t kPage = 65536;  // or a part of one; also the largest struct that the library takes

// A struct of `size` bytes, the first of which are those of `value` and the rest zero. It ends where memory ends.
template <class Struct>
class OtherAge {
 public:
  OtherAge(const Struct& value, size_t size) : size_(size) {
    pages_ = static_cast<char*>(mmap(nullptr, 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (pages_ == MAP_FAILED || mprotect(pages_, kPage, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memcpy(bytes(), &value, std::min(size, sizeof value));
    const auto written = static_cast<uint32_t>(size);
    std::memcpy(bytes(), &written, sizeof written);
  }
  OtherAge(const OtherAge&) = delete;
  ~OtherAge() { munmap(pages_, 2 * kPage); }

  char* bytes() { return pages_ + kPage - size_; }
  const Struct* get() { return reinterpret_cast<const Struct*>(bytes()); }

 private:
  char* pages_;
  size_t size_;
};

// All that a call gives back.
struct Outcome {
  tw_status status;
  std::string message;
  std::vector<float> written;
  bool operator==(const Outcome&) const = default;
};

// How many prefixes of a struct are a call that works, each giving what the whole struct gives with zeros for the rest.
// Structs grow by multiples of 8 bytes, so every boundary at which one may have ended is among them.
template <class Struct, class Run>
int working_prefixes(const Struct& value, const Run& run) {
  int working = 0;
  for (size_t size = 8; size <= sizeof value; size += 8) {
    Struct zeros_follow{};
    std::memcpy(&zeros_follow, &value, size);
    const Outcome expected = run(&zeros_follow);
    OtherAge<Struct> older(value, size);
    const Outcome outcome = run(older.get());
    EXPECT_EQ(outcome.status, expected.status) << size << " bytes: " << outcome.message;
    EXPECT_EQ(outcome.message, expected.message) << size << " bytes";
    EXPECT_TRUE(outcome.written == expected.written) << size << " bytes";
    working += outcome.status == TW_OK;
  }
  return working;
}

// Longer structs work while what follows is zero; one byte that is not is refused by its place.
template <class Struct, class Run>
void expect_zero_tails(const Struct& value, const Run& run) {
  const Outcome expected = run(&value);
  ASSERT_EQ(expected.status, TW_OK) << expected.message;
  for (size_t size : {sizeof value + 8, sizeof value + 64, size_t{65536}}) {
    OtherAge<Struct> newer(value, size);
    EXPECT_TRUE(run(newer.get()) == expected) << size << " bytes: " << tw_last_error();
    for (size_t place : {sizeof value, sizeof value + 7, size - 8, size - 1}) {
      newer.bytes()[place] = 1;
      const Outcome refused = run(newer.get());
      EXPECT_EQ(refused.status, TW_UNSUPPORTED) << size << " bytes";
      EXPECT_TRUE(last_error_has(("byte " + std::to_string(place) + " is not 0").c_str())) << refused.message;
      EXPECT_TRUE(Call::all_untouched(refused.written));
      newer.bytes()[place] = 0;
    }
  }
}

template <class Struct, class Run>
void expect_sizes_refused(const Struct& value, const Run& run) {
  OtherAge<Struct> other(value, 65536);
  for (uint32_t size : {0u, 4u, 7u, 12u, uint32_t{sizeof value} - 4, uint32_t{sizeof value} + 1, 65544u, 0xCDCDCDCDu}) {
    std::memcpy(other.bytes(), &size, sizeof size);
    const Outcome refused = run(other.get());
    EXPECT_EQ(refused.status, TW_INVALID_ARGUMENT) << size;
    EXPECT_TRUE(last_error_has(("struct_size is " + std::to_string(size)).c_str())) << refused.message;
    EXPECT_TRUE(last_error_has("TW_INIT")) << refused.message;
    EXPECT_TRUE(Call::all_untouched(refused.written));
  }
}

void append(std::vector<float>& all, std::vector<float>& part) {
  all.insert(all.end(), part.begin(), part.end());
  std::fill(part.begin(), part.end(), kUntouched);
}

// The outcome of the call just made; its outputs are made ready for the next one.
Outcome outcome(tw_status status, std::initializer_list<std::vector<float>*> outputs) {
  Outcome result{status, status == TW_OK ? "" : tw_last_error(), {}};
  for (std::vector<float>* output : outputs) append(result.written, *output);
  return result;
}

// A forward with an option in every stretch of the struct that the CPU serves.
class GrowthOfProblem : public testing::Test {
 protected:
  GrowthOfProblem() {
    c.a.flags = TW_CAUSAL | TW_WINDOW_LEFT | TW_WINDOW_RIGHT | TW_SOFTMAX_SCALE;
    c.a.threads = 2;
    c.a.seqused_k = tw_tensor_of(lengths, TW_I32, Call::kB, 1, 1, 1);
    c.a.max_seqlen_k = Call::kSk;
    c.a.softmax_scale = 0.5f, c.a.softcap = 20, c.a.dropout_p = 0.25f;
    c.a.bias = tw_tensor_of(bias.data(), TW_F32, 1, 1, Call::kSq, Call::kSk);
    c.a.alibi_slopes = tw_tensor_of(bias.data(), TW_F32, 1, Call::kH, 1, 1);
    c.a.window_left = 3, c.a.window_right = 1, c.a.attention_chunk = 4;
    c.a.mask = tw_tensor_of(mask, TW_BOOL, 1, 1, 1, Call::kSk);
    c.a.sink = tw_tensor_of(bias.data(), TW_F32, Call::kH, 1, 1, 1);
    c.a.dropout_seed = 7, c.a.dropout_offset = 11;
    c.a.prior_out = c.a.out, c.a.prior_out.data = prior_out.data();
    c.a.prior_lse = c.a.lse, c.a.prior_lse.data = prior_lse.data();
  }

  Outcome run(const tw_attention* a) { return outcome(tw_attention_forward(a, nullptr), {&c.out, &c.lse}); }

  Call c;
  const int32_t lengths[Call::kB] = {4, 5};
  const unsigned char mask[Call::kSk] = {1, 1, 0, 1, 1};
  std::vector<float> bias = Call::numbers(64, 5);
  std::vector<float> prior_out = Call::numbers(static_cast<int64_t>(c.out.size()), 6);
  std::vector<float> prior_lse = Call::numbers(static_cast<int64_t>(c.lse.size()), 8);
};

TEST_F(GrowthOfProblem, EveryPrefixIsTheWholeWithZeros) {
  c.a.flags = 0;  // one written for later fields would make every shorter call an error
  c.a.softmax_scale = 0, c.a.window_left = c.a.window_right = 0;
  EXPECT_GE(working_prefixes(c.a, [&](const tw_attention* a) { return run(a); }), 180);
}

TEST_F(GrowthOfProblem, ZerosMayFollow) {
  const auto run_it = [&](const tw_attention* a) { return run(a); };
  expect_zero_tails(c.a, run_it);
  expect_sizes_refused(c.a, run_it);
}

TEST(Growth, OfGradients) {
  Call c;
  std::vector<float> sink = Call::numbers(Call::kH, 5), dlse = Call::numbers(static_cast<int64_t>(c.lse.size()), 6);
  std::vector<float> dsink = Call::untouched(Call::kH);
  c.a.sink = tw_tensor_of(sink.data(), TW_F32, Call::kH, 1, 1, 1);
  c.g.dlse = c.a.lse, c.g.dlse.data = dlse.data();
  c.g.dsink = tw_tensor_of(dsink.data(), TW_F32, Call::kH, 1, 1, 1);
  ASSERT_EQ(c.forward(), TW_OK) << tw_last_error();
  const auto run = [&](const tw_attention_grad* g) {
    return outcome(tw_attention_backward(&c.a, g, nullptr), {&c.dq, &c.dk, &c.dv, &dsink});
  };
  EXPECT_GE(working_prefixes(c.g, run), 40);
  expect_zero_tails(c.g, run);
  expect_sizes_refused(c.g, run);
}

// The pool of a host: a plain loop that counts the tasks.
void count_tasks(void* context, int64_t count, void (*task)(void*, int64_t), void* task_context) {
  *static_cast<float*>(context) += static_cast<float>(count);
  for (int64_t i = 0; i < count; ++i) task(task_context, i);
}

TEST(Growth, OfExecAndItsPool) {
  Call c;
  c.a.threads = 2;
  tw_plan plan;
  ASSERT_EQ(tw_attention_plan(&c.a, nullptr, &plan), TW_OK) << tw_last_error();
  std::vector<char> memory(plan.workspace_bytes + 256);
  std::vector<float> tasks = {0};
  tw_fault fault = {};
  tw_thread_pool pool;
  TW_INIT(pool);
  pool.context = tasks.data();
  pool.parallel_for = count_tasks;
  tw_exec e;
  TW_INIT(e);
  e.workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  e.workspace_bytes = plan.workspace_bytes;
  e.pool = &pool;
  e.fault = &fault;

  const auto run = [&](const tw_exec* exec) {
    tasks = {0};
    const tw_status status = tw_attention_forward(&c.a, exec);
    if (status != TW_OK) tasks = {kUntouched};
    return outcome(status, {&c.out, &c.lse, &tasks});
  };
  EXPECT_GE(working_prefixes(e, run), 4);
  expect_zero_tails(e, run);
  expect_sizes_refused(e, run);

  const auto run_pool = [&](const tw_thread_pool* given) {
    e.pool = given;
    return run(&e);
  };
  EXPECT_EQ(working_prefixes(pool, run_pool), 1);  // its function comes last
  expect_zero_tails(pool, run_pool);
  expect_sizes_refused(pool, run_pool);
}

TEST(Growth, OfMerge) {
  Call c;
  ASSERT_EQ(c.forward(), TW_OK) << tw_last_error();
  std::vector<float> part = c.out, part_lse = c.lse;
  tw_merge m;
  TW_INIT(m);
  m.device_type = TW_CPU;
  m.parts = 1;
  m.out_parts = c.a.out, m.out_parts.data = part.data();
  m.lse_parts = c.a.lse, m.lse_parts.data = part_lse.data();
  m.out = c.a.out;
  m.lse = c.a.lse;
  std::fill(c.out.begin(), c.out.end(), kUntouched);
  std::fill(c.lse.begin(), c.lse.end(), kUntouched);
  const auto run = [&](const tw_merge* merge) { return outcome(tw_attention_merge(merge, nullptr), {&c.out, &c.lse}); };
  EXPECT_EQ(working_prefixes(m, run), 11);  // all that hold `out`; `lse` is optional
  expect_zero_tails(m, run);
  expect_sizes_refused(m, run);
}

// What lies past an older caller's struct is somebody else's: here other variables, which are not zero.
TEST(Growth, WhatFollowsAnOlderStructIsNotLookedAt) {
  Call c;
  ASSERT_EQ(c.forward(), TW_OK) << tw_last_error();
  const std::vector<float> whole = c.out;
  c.a.struct_size = offsetof(tw_attention, prior_out);
  std::memset(&c.a.prior_out, 0x55, 2 * sizeof(tw_tensor));
  ASSERT_EQ(c.forward(), TW_OK) << tw_last_error();
  EXPECT_EQ(c.out, whole);
}

}  // namespace
}  // namespace tilewise::test
