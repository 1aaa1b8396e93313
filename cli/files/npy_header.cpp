#include <charconv>

#include "cli/failure.h"
#include "cli/files/npy.h"

namespace tilewise::cli {
namespace {

// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } in any order and spacing: the part of Python's literals
// that numpy writes.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      parse_entry();
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_space();
    if (!text_.empty()) malformed();
    if (!seen_descr_ || !seen_order_ || !seen_shape_) {
      fail(ExitCode::bad_input, "header needs 'descr', 'fortran_order' and 'shape'");
    }
    return header_;
  }

 private:
  void parse_entry() {
    const std::string key = parse_string();
    expect(':');
    if (key == "descr") {
      first_time(seen_descr_, key);
      header_.descr = parse_descr();
    } else if (key == "fortran_order") {
      first_time(seen_order_, key);
      header_.fortran_order = parse_boolean();
    } else if (key == "shape") {
      first_time(seen_shape_, key);
      header_.shape = parse_shape();
    } else {
      fail(ExitCode::bad_input, "unknown header key {}", in_quotes(key));
    }
  }

  static void first_time(bool& seen, const std::string& key) {
    if (seen) fail(ExitCode::bad_input, "header key '{}' twice", key);
    seen = true;
  }

  std::string parse_descr() {
    skip_space();
    if (!text_.empty() && text_.front() == '[') fail(ExitCode::bad_input, "structured arrays are not supported");
    return parse_string();
  }

  std::string parse_string() {
    skip_space();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) malformed();
    const size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) malformed();
    std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }

  bool parse_boolean() {
    if (accept_word("True")) return true;
    if (accept_word("False")) return false;
    malformed();
  }

  std::vector<int64_t> parse_shape() {
    std::vector<int64_t> shape;
    expect('(');
    while (!accept(')')) {
      shape.push_back(parse_extent());
      if (accept(',')) continue;
      expect(')');
      break;
    }
    return shape;
  }

  int64_t parse_extent() {
    skip_space();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail(ExitCode::bad_input, "shape: an extent overflows 64 bits");
    if (error != std::errc()) malformed();
    if (value < 0) fail(ExitCode::bad_input, "shape: extent {} is negative", value);
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    accept('L');  // Python 2 wrote its long integers so
    return value;
  }

  void skip_space() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) text_.remove_prefix(1);
  }

  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  void expect(char c) {
    if (!accept(c)) malformed();
  }

  [[noreturn]] void malformed() const {
    fail(ExitCode::bad_input, "malformed header at {}", text_.empty() ? "its end" : in_quotes(text_.substr(0, 20)));
  }

  std::string_view text_;
  NpyHeader header_;
  bool seen_descr_ = false, seen_order_ = false, seen_shape_ = false;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text) { return HeaderParser(text).parse(); }

}  // namespace tilewise::cli
