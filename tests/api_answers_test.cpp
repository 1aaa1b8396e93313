// tw_attention_explain and tw_info: JSON that any reader takes, cut as snprintf cuts.
#include <gtest/gtest.h>

#include <chrono>
#include <clocale>
#include <nlohmann/json.hpp>

#include "api_call.h"
#include "core/json_writer.h"

namespace tilewise::test {
namespace {

using nlohmann::json;

json explain(const tw_attention* problem, const tw_attention_grad* grad) {
  std::string text(1 << 16, '\0');
  const size_t length = tw_attention_explain(problem, grad, text.data(), text.size());
  EXPECT_LT(length, text.size());
  EXPECT_EQ(std::strlen(text.c_str()), length);
  return json::parse(text.c_str());
}

json info() {
  std::string text(1 << 16, '\0');
  const size_t length = tw_info(text.data(), text.size());
  EXPECT_LT(length, text.size());
  return json::parse(text.c_str());
}

TEST(Explain, TellsThePlan) {
  Call c;
  tw_plan plan;
  for (const bool backward : {false, true}) {
    const tw_attention_grad* grad = backward ? &c.g : nullptr;
    ASSERT_EQ(tw_attention_plan(&c.a, grad, &plan), TW_OK);
    const json answer = explain(&c.a, grad);
    EXPECT_EQ(answer["kernel"], tw_plan_kernel(&plan));
    EXPECT_EQ(answer["pass"], backward ? "backward" : "forward");
    EXPECT_EQ(answer["workspace_bytes"], plan.workspace_bytes);
    EXPECT_EQ(answer["workers"], 1) << "a small problem";
    for (const char* key : {"query_rows", "keys", "chunk_keys", "splits"}) {
      EXPECT_TRUE(answer[key].is_number_integer()) << key;
    }
  }
}

// Two products of D = 8 and Dv = 6 over the live pairs.
TEST(Explain, CountsFlopsAndBytes) {
  Call c;
  const int64_t pairs = Call::kB * Call::kH * Call::kSq * Call::kSk;
  json answer = explain(&c.a, nullptr);
  EXPECT_EQ(answer["flops"], 2 * pairs * (8 + 6));
  EXPECT_GT(answer["bytes"], 0);
  EXPECT_TRUE(answer["roofline_ms"].is_number() || answer["roofline_ms"].is_null());
  EXPECT_EQ(explain(&c.a, &c.g)["flops"], 2 * pairs * (3 * 8 + 2 * 6));
  c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{1, 0});
  EXPECT_EQ(explain(&c.a, nullptr)["flops"], 2 * Call::kH * Call::kSq * (8 + 6)) << "lengths that are there count";
  c.a.q.data = nullptr;
  c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{99, -1});
  EXPECT_EQ(explain(&c.a, nullptr)["flops"], 2 * pairs * (8 + 6)) << "without all data no memory is looked at";
}

TEST(Explain, HasNoNumbersForWhatNobodyCounts) {
  Call c;
  for (tw_tensor* t : {&c.a.q, &c.a.out}) t->data = nullptr, t->shape[0] = 1, t->shape[1] = int64_t{1} << 40;
  for (tw_tensor* t : {&c.a.k, &c.a.v}) t->shape[0] = 1;
  c.a.lse.dtype = TW_NONE;
  EXPECT_TRUE(explain(&c.a, nullptr)["flops"].is_null());
}

// Each would take a minute to count, row by row or sequence by sequence.
TEST(Explain, TakesNoMinuteToCount) {
  const auto start = std::chrono::steady_clock::now();
  const auto expect_no_numbers = [](int64_t batch, int64_t rows, int64_t heads) {
    Call c;
    c.a.q = c.a.out = tw_tensor_of(nullptr, TW_F32, batch, rows, heads, 8);
    c.a.k = c.a.v = tw_tensor_of(nullptr, TW_F32, batch, 16, 1, 8);
    c.a.lse.dtype = TW_NONE;
    c.a.mask = tw_tensor_of(nullptr, TW_BOOL, 1, 1, 1, 16);
    EXPECT_TRUE(explain(&c.a, nullptr)["flops"].is_null()) << batch << " " << rows << " " << heads;
  };
  expect_no_numbers(1 << 26, 1, 1);
  expect_no_numbers(1, 1 << 26, 1);
  expect_no_numbers(1, 1 << 20, 1 << 10);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

struct ForcedKernel {
  explicit ForcedKernel(const char* name) { setenv("TILEWISE_FORCE_KERNEL", name, 1); }
  ~ForcedKernel() { unsetenv("TILEWISE_FORCE_KERNEL"); }
};

// Names of the kernels of a pass that stand before this one in the table.
std::vector<std::string> before(const std::string& chosen, const std::string& pass) {
  const json answer = info();
  std::vector<std::string> names;
  for (const json& kernel : answer["kernels"]) {
    if (kernel["name"] == chosen) break;
    if (kernel["pass"] == pass) names.push_back(kernel["name"]);
  }
  return names;
}

TEST(Explain, TellsWhyBetterKernelsRefuse) {
  Call c;
  const auto expect_all_better = [&](const char* pass, const tw_attention_grad* grad) {
    const json answer = explain(&c.a, grad);
    std::vector<std::string> refused;
    for (const json& refusal : answer["refused"]) {
      refused.push_back(refusal["kernel"]);
      EXPECT_NE(refusal["reason"], "");
    }
    EXPECT_EQ(refused, before(answer["kernel"], pass));
    return answer;
  };
  expect_all_better("forward", nullptr);
  expect_all_better("backward", &c.g);

  const ForcedKernel forced("reference");
  const json answer = expect_all_better("forward", nullptr);
  EXPECT_EQ(answer["kernel"], "cpu.reference.forward");
  EXPECT_EQ(answer["refused"].back()["reason"], "TILEWISE_FORCE_KERNEL asks for another") << "the portable one serves";
}

TEST(Explain, TellsTheError) {
  Call c;
  c.a.q.shape[2] = 3;
  c.a.out.shape[2] = c.a.lse.shape[1] = 3;
  const json error = explain(&c.a, nullptr)["error"];
  EXPECT_EQ(error["code"], TW_INVALID_ARGUMENT);
  EXPECT_EQ(error["name"], "TW_INVALID_ARGUMENT");
  EXPECT_EQ(c.forward(), TW_INVALID_ARGUMENT);
  EXPECT_EQ(error["message"], tw_last_error()) << "the text of the run";
  EXPECT_EQ(explain(nullptr, nullptr)["error"]["message"], "problem is NULL");
}

TEST(Explain, LooksAtNumbersWhereAllDataIsThere) {
  Call c;
  c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{9, 0});
  EXPECT_EQ(explain(&c.a, nullptr)["error"]["message"], "seqused_k[0] is 9: must be 0..5, the room of the sequence");
  c.a.seqused_k.data = nullptr;
  EXPECT_TRUE(explain(&c.a, nullptr).contains("kernel")) << "planning needs no data";
}

TEST(Explain, LeavesTheLastErrorAlone) {
  Call c;
  c.a.threads = -7;
  ASSERT_EQ(c.forward(), TW_INVALID_ARGUMENT);
  c.a.threads = -8;
  explain(&c.a, nullptr);
  EXPECT_TRUE(last_error_has("threads is -7"));
}

TEST(Explain, IsCutAsSnprintfCuts) {
  Call c;
  std::string whole(1 << 16, '\0');
  const size_t length = tw_attention_explain(&c.a, nullptr, whole.data(), whole.size());
  whole.resize(length);
  EXPECT_EQ(tw_attention_explain(&c.a, nullptr, nullptr, 0), length);
  for (const size_t capacity : {size_t{1}, size_t{2}, size_t{10}, length, length + 1}) {
    std::string text(capacity + 4, '#');
    EXPECT_EQ(tw_attention_explain(&c.a, nullptr, text.data(), capacity), length);
    EXPECT_EQ(text.substr(capacity), "####") << "nothing past the capacity";
    const size_t kept = std::min(capacity - 1, length);
    EXPECT_EQ(text.substr(0, kept), whole.substr(0, kept));
    EXPECT_EQ(text[kept], '\0');
  }
}

TEST(Info, TellsMachineKernelsAndBackEnds) {
  const json answer = info();
  EXPECT_EQ(answer["version"], "0.1.0");
  EXPECT_GE(answer["cpu"]["cores"], 1);
  EXPECT_TRUE(answer["cpu"]["isa"].is_array());
  EXPECT_GT(answer["cpu"]["l2_bytes"], 0);
  bool has_oracle = false;
  for (const json& kernel : answer["kernels"]) {
    EXPECT_TRUE(kernel["available"].is_boolean());
    EXPECT_EQ(kernel["available"].get<bool>(), kernel["why_not"].is_null());
    const std::string name = kernel["name"], isa = kernel["isa"];
    const bool is_named = name.find("." + isa + ".") != std::string::npos || name.starts_with(isa + ".");
    EXPECT_TRUE(isa == "portable" || is_named) << name << " " << isa;
    EXPECT_TRUE(kernel["accepts"].is_array() && kernel["refuses"].is_array());
    EXPECT_EQ(kernel["available"].get<bool>(), !kernel["accepts"].empty());
    has_oracle = has_oracle || (kernel["name"] == "cpu.reference.forward" && kernel["rank"] == "fallback" &&
                                kernel["refuses"].empty());
  }
  EXPECT_TRUE(has_oracle);
  EXPECT_EQ(answer["backends"][0]["name"], "cpu");
  EXPECT_EQ(answer["backends"][1]["name"], "cuda");
  EXPECT_EQ(answer["backends"][1]["available"], false);
  EXPECT_NE(answer["backends"][1]["reason"], "");
}

TEST(Info, IsCutAsSnprintfCuts) {
  const size_t length = tw_info(nullptr, 0);
  std::string text(length + 1, '#');
  EXPECT_EQ(tw_info(text.data(), 5), length);
  EXPECT_STREQ(text.c_str(), "{\"ve");
}

// ---- The writer.

std::string written(void (*write)(JsonWriter&)) {
  char text[512];
  JsonWriter writer(text, sizeof text);
  write(writer);
  EXPECT_EQ(std::strlen(text), writer.length());
  return text;
}

TEST(JsonText, EscapesWhatJsonDoesNotAllow) {
  const std::string text = written([](JsonWriter& w) { w.string("a\"b\\c\n\x01\xff"); });
  EXPECT_EQ(json::parse(text).get<std::string>(), "a\"b\\c\n\x01\u00ff");
}

TEST(JsonText, NumbersKnowNoLocale) {
  const std::string before = std::setlocale(LC_NUMERIC, nullptr);
  std::setlocale(LC_NUMERIC, "de_DE.UTF-8");
  EXPECT_EQ(written([](JsonWriter& w) { w.real(0.5); }), "0.5");
  std::setlocale(LC_NUMERIC, before.c_str());
  EXPECT_EQ(written([](JsonWriter& w) { w.integer(INT64_MIN); }), "-9223372036854775808");
  EXPECT_EQ(written([](JsonWriter& w) { w.real(1.0 / 0.0); }), "null");
}

TEST(JsonText, SetsCommasAndBrackets) {
  EXPECT_EQ(written([](JsonWriter& w) {
              w.begin_object().key("a").begin_array().integer(1).boolean(true).null().end_array();
              w.key("b").begin_object().end_object().key("c").begin_array().begin_object().end_object();
              w.begin_object().end_object().end_array().end_object();
            }),
            R"({"a": [1, true, null], "b": {}, "c": [{}, {}]})");
}

}  // namespace
}  // namespace tilewise::test
