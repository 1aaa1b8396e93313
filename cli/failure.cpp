#include "cli/failure.h"

namespace tilewise::cli {

ShownByte shown_byte(char c) {
  constexpr const char* kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20 && byte != 0x7f) return {{c}, 1};
  return {{'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]}, 4};
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const ShownByte byte = shown_byte(c);
    out.append(byte.chars.data(), byte.size);
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 60;
  return fmt::format("'{}{}'", printable(text.substr(0, kShown)), text.size() > kShown ? "..." : "");
}

}  // namespace tilewise::cli
