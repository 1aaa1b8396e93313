#include "cli/suggest.h"

#include <algorithm>

namespace tilewise::cli {
namespace {

std::string_view without_dashes(std::string_view word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

// Optimal string alignment: rows of the table of distances between the first i letters of a and the first j of b.
size_t slips(std::string_view a, std::string_view b) {
  std::vector<size_t> two_above, above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t other = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, other});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
    two_above = above;
    above = row;
  }
  return above[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 64;  // no option or command is as long
  const std::string_view letters = without_dashes(word);
  if (letters.empty() || letters.size() > kLongest) return "";
  size_t most = std::max<size_t>(1, letters.size() / 3);
  std::string best;
  for (const std::string& candidate : known) {
    const size_t distance = slips(letters, without_dashes(candidate));
    if (distance > most || (distance == most && !best.empty())) continue;
    most = distance;
    best = candidate;
  }
  return best;
}

}  // namespace tilewise::cli
