// What a refused call says, as a Result or as an exception, and how to ask before calling.
#include <cstdio>
#include <string_view>
#include <tilewise/tilewise.hpp>
#include <vector>

namespace {

constexpr int B = 1, S = 16, H = 6, Hk = 2, D = 8;

// Whether a call that should be refused with `expected` was; shows what it says.
bool refused(std::string_view what, tw_status expected, const tilewise::Result& result) {
  std::printf("%.*s\n  %s: %s\n", int(what.size()), what.data(), tw_status_name(result.status), result.message.c_str());
  return result.status == expected;
}

// The same of a call whose failure is to be an exception.
bool thrown(std::string_view what, tw_status expected, const tilewise::Result& result) {
  try {
    result.or_throw();
  } catch (const tilewise::Error& error) {
    std::printf("%.*s\n  %s: %s\n", int(what.size()), what.data(), tw_status_name(error.status()), error.what());
    return error.status() == expected;
  }
  return false;
}

}  // namespace

int main() {
  std::vector<float> q(B * S * H * D), k(B * S * Hk * D), v(k.size()), out(q.size());
  const tilewise::Attention good{
      .q = {q, B, S, H, D}, .k = {k, B, S, Hk, D}, .v = {v, B, S, Hk, D}, .out = {out, B, S, H, D}};
  bool as_expected = static_cast<bool>(tilewise::forward(good));

  tilewise::Attention heads = good;
  heads.k = {k, B, S * Hk / 4, 4, D}, heads.v = {v, B, S * Hk / 4, 4, D};
  as_expected &= refused("6 query heads on 4 key/value heads", TW_INVALID_ARGUMENT, tilewise::forward(heads));

  tilewise::Attention shorter = good;
  shorter.out = {std::span(out).first(100), B, S, H, D};
  as_expected &= refused("an output in too little memory", TW_INVALID_ARGUMENT, tilewise::forward(shorter));

  tilewise::Attention window = good;
  window.window_left = -1;  // no window is std::nullopt
  as_expected &= thrown("a negative window, as an exception", TW_INVALID_ARGUMENT, tilewise::forward(window));

  std::vector<float> row(640);
  const tilewise::Attention wide{
      .q = {row, 1, 1, 1, 640}, .k = {row, 1, 1, 1, 640}, .v = {row, 1, 1, 1, 640}, .out = {row, 1, 1, 1, 640}};
  tilewise::AttentionPlan plan;  // planning tells whether a call would be served
  as_expected &= refused("a head size that no kernel serves", TW_UNSUPPORTED, tilewise::plan_forward(wide, plan));
  return as_expected ? 0 : 1;
}
