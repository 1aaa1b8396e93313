#include "cli/demo_summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text.h"

namespace tilewise::cli {
namespace {

// The largest error of an algorithm over the lengths up to `most` tokens.
double worst(const std::map<int64_t, DemoLines>& lengths, DemoPlace place) {
  double error = 0;
  for (const auto& [tokens, lines] : lengths) {
    if (lines[place]) error = std::max(error, lines[place]->error);
  }
  return error;
}

// "Title    text", wrapped, with the lines after the first below the text.
std::string paragraph(const char* title, const std::string& text) {
  constexpr size_t kIndent = 10, kWidth = 98;
  std::string out = fmt::format("{:<{}}", title, kIndent), line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (kIndent + line.size() + 1 + word.size() > kWidth) {
      out += line + "\n" + std::string(kIndent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return out + line + "\n";
}

std::string seconds_text(double ms) { return ms < 999.5 ? time_text(ms) + " ms" : fmt::format("{:.2f} s", ms / 1e3); }

std::string exactness(const DemoResults& results) {
  const int64_t least = results.forward.begin()->first, most = results.forward.rbegin()->first;
  const std::string where = least == most ? fmt::format("At {} tokens", count_text(least))
                                          : fmt::format("From {} to {} tokens", count_text(least), count_text(most));
  return paragraph("Exact", fmt::format("{} the tiled kernel is within {} of double precision, standard attention "
                                        "within {}: the same function in another order, nothing is approximated.",
                                        where, error_text(worst(results.forward, kTiled)),
                                        error_text(worst(results.forward, kStandard))));
}

std::string memory(const DemoResults& results, int64_t tokens, const DemoLines& lines) {
  const auto& [least, first] = *results.forward.begin();
  const auto standard = static_cast<double>(lines[kStandard]->workspace);
  const auto tiled = static_cast<double>(lines[kTiled]->workspace);
  std::string text =
      fmt::format("At {} tokens standard attention needs {} beside inputs and outputs, tiled {}: {}.",
                  count_text(tokens), size_text(lines[kStandard]->workspace), size_text(lines[kTiled]->workspace),
                  against_text(standard, tiled, "smaller", "larger"));
  if (tokens > least && first[kStandard] && first[kTiled]) {
    text += fmt::format(
        " From {} tokens on, standard's grew {}, tiled's {}: standard keeps the squares of as many "
        "heads at once as fit into 64 MiB, so it grows with tokens squared once one head fills these.",
        count_text(least), ratio_text(standard / static_cast<double>(first[kStandard]->workspace)),
        ratio_text(tiled / static_cast<double>(first[kTiled]->workspace)));
  }
  return paragraph("Memory", text);
}

std::string bytes(const DemoLines& lines) {
  std::string text =
      fmt::format("Standard attention moves {} between slow and fast memory", size_text(lines[kStandard]->moved));
  if (lines[kV1]) text += fmt::format(", FlashAttention-1 {}", size_text(lines[kV1]->moved));
  return paragraph("Bytes", text + fmt::format(", tiled {}.", size_text(lines[kTiled]->moved)));
}

std::string faster_text(double other, double own) { return against_text(other, own, "faster", "slower"); }

std::string time(const DemoLines& lines) {
  const double tiled = lines[kTiled]->ms, standard = lines[kStandard]->ms;
  std::string text = fmt::format("Tiled takes {}: {} than standard attention ({})", seconds_text(tiled),
                                 faster_text(standard, tiled), seconds_text(standard));
  if (lines[kV1]) {
    text += fmt::format(", {} than FlashAttention-1 ({})", faster_text(lines[kV1]->ms, tiled),
                        seconds_text(lines[kV1]->ms));
  }
  return paragraph("Time", text + ".");
}

std::string backward(const DemoResults& results) {
  const auto& [tokens, lines] = *results.backward.rbegin();
  if (!lines[kStandard] || !lines[kTiled]) return "";
  std::string text = fmt::format(
      "At {} tokens the tiled gradients are within {} of double precision, standard's within {}; they are "
      "computed {} than standard's.",
      count_text(tokens), error_text(lines[kTiled]->error), error_text(lines[kStandard]->error),
      faster_text(lines[kStandard]->ms, lines[kTiled]->ms));
  if (lines[kV1] && lines[kV1]->moved < lines[kTiled]->moved) {
    text += fmt::format(
        " Tiled moves {}, FlashAttention-1 {}: tiled cuts the keys into smaller blocks, so that every "
        "core has work on one long sequence, and each block reads the queries and adds to their gradients again.",
        size_text(lines[kTiled]->moved), size_text(lines[kV1]->moved));
  }
  return paragraph("Backward", text);
}

std::string did_not_fit(const DemoResults& results) {
  const auto& [tokens, lines] = *results.forward.rbegin();
  if (lines[kStandard]) return "";
  return paragraph("Limit", fmt::format("At {} tokens standard attention did not fit into this machine's memory.",
                                        count_text(tokens)));
}

}  // namespace

bool within_contract(const DemoLines& lines) {
  constexpr double kRounding = 1e-6, kStandardAtMost = 1e-5;
  const double standard = lines[kStandard] ? lines[kStandard]->error : 0;
  return standard <= kStandardAtMost && std::all_of(lines.begin(), lines.end(), [&](const auto& line) {
           return !line || line->error <= 2 * standard + kRounding;
         });
}

std::string demo_summary(const DemoResults& results) {
  std::string text = exactness(results);
  for (auto length = results.forward.rbegin(); length != results.forward.rend(); ++length) {
    const auto& [tokens, lines] = *length;
    if (!lines[kStandard] || !lines[kTiled]) continue;
    text += memory(results, tokens, lines) + bytes(lines) + time(lines);
    break;
  }
  return text + did_not_fit(results) + (results.backward.empty() ? "" : backward(results));
}

}  // namespace tilewise::cli
