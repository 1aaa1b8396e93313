#include "cli/failure.h"

namespace tilewise::cli {

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kShown ? "...'" : "'");
}

}  // namespace tilewise::cli
