#include "cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

namespace tilewise::cli {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& rule) { throw CLI::ValidationError(name, rule); }

template <typename Integer>
Integer parse_64_bits(const std::string& name, const std::string& text, const char* what) {
  Integer value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool whole = stop == end && !text.empty();
  if (whole && error == std::errc::result_out_of_range) refuse(name, in_quotes(text) + " overflows 64 bits");
  if (!whole || error != std::errc()) refuse(name, fmt::format("{} is not {}", in_quotes(text), what));
  return value;
}

int64_t parse_integer(const std::string& name, const std::string& text, Bounds bounds) {
  const auto value = parse_64_bits<int64_t>(name, text, "an integer");
  if (value < bounds.least) refuse(name, fmt::format("{} is less than {}", value, bounds.least));
  if (value > bounds.most) refuse(name, fmt::format("{} is more than {}", value, bounds.most));
  return value;
}

double parse_number(const std::string& name, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || text.empty() || error != std::errc()) refuse(name, in_quotes(text) + " is not a number");
  return value;
}

std::string parse_choice(const std::string& name, const std::string& text, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
    refuse(name, fmt::format("{} is not one of {}", in_quotes(text), fmt::join(allowed, ", ")));
  }
  return text;
}

std::vector<std::string> split(const std::string& name, const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) refuse(name, in_quotes(text) + " has an empty entry");
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string with_default(const std::string& help, const std::string& value) {
  return value.empty() ? help : fmt::format("{} [{}]", help, value);
}

}  // namespace

void Arguments::option(const std::string& name, const std::string& shown, const std::string& help,
                       const std::function<void(const std::string&)>& set) {
  app_.add_option_function<std::string>(name, set, help)->option_text(shown)->group(group_);
}

void Arguments::flag(const std::string& name, bool& value, const std::string& help) {
  app_.add_flag(name, value, help)->option_text(" ")->group(group_);
}

void Arguments::integer(const std::string& name, int64_t& value, Bounds bounds, const std::string& help) {
  option(name, "N", with_default(help, std::to_string(value)),
         [name, &value, bounds](const std::string& text) { value = parse_integer(name, text, bounds); });
}

void Arguments::integer(const std::string& name, std::optional<int64_t>& value, Bounds bounds,
                        const std::string& help) {
  option(name, "N", help,
         [name, &value, bounds](const std::string& text) { value = parse_integer(name, text, bounds); });
}

void Arguments::bits(const std::string& name, std::optional<uint64_t>& value, const std::string& help) {
  option(name, "N", help, [name, &value](const std::string& text) {
    value = parse_64_bits<uint64_t>(name, text, "an integer from 0 to 2^64 - 1");
  });
}

void Arguments::number(const std::string& name, std::optional<double>& value, const std::string& help) {
  option(name, "X", help, [name, &value](const std::string& text) { value = parse_number(name, text); });
}

void Arguments::text(const std::string& name, std::string& value, const char* placeholder, const std::string& help) {
  option(name, placeholder, with_default(help, value), [name, &value](const std::string& text) {
    if (text.empty()) refuse(name, "is empty");
    value = text;
  });
}

void Arguments::choice(const std::string& name, std::string& value, std::vector<std::string> allowed,
                       const std::string& help) {
  const std::string shown = fmt::format("{}", fmt::join(allowed, "|"));
  option(name, shown, with_default(help, value), [name, &value, allowed = std::move(allowed)](const std::string& text) {
    value = parse_choice(name, text, allowed);
  });
}

void Arguments::integers(const std::string& name, std::vector<int64_t>& values, Bounds bounds,
                         const std::string& help) {
  option(name, "N,..", with_default(help, fmt::format("{}", fmt::join(values, ","))),
         [name, &values, bounds](const std::string& text) {
           values.clear();
           for (const std::string& part : split(name, text)) values.push_back(parse_integer(name, part, bounds));
         });
}

void Arguments::texts(const std::string& name, std::vector<std::string>& values, const char* placeholder,
                      const std::string& help) {
  option(name, placeholder, with_default(help, fmt::format("{}", fmt::join(values, ","))),
         [name, &values](const std::string& text) { values = split(name, text); });
}

void Arguments::choices(const std::string& name, std::vector<std::string>& values, std::vector<std::string> allowed,
                        const std::string& help) {
  const std::string shown = fmt::format("{},..", fmt::join(allowed, "|"));
  option(name, shown, with_default(help, fmt::format("{}", fmt::join(values, ","))),
         [name, &values, allowed = std::move(allowed)](const std::string& text) {
           values = split(name, text);
           for (const std::string& part : values) parse_choice(name, part, allowed);
         });
}

void Arguments::excludes(const std::string& name, const std::string& other) {
  app_.get_option(name)->excludes(app_.get_option(other));
}

}  // namespace tilewise::cli
