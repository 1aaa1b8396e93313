#include "cli/table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/text.h"

namespace tilewise::cli {
namespace {

constexpr const char* kNothing = "-";

bool is_number(const Cell& cell) {
  return std::holds_alternative<int64_t>(cell) || std::holds_alternative<double>(cell);
}

double number_in(const Cell& cell) {
  if (const auto* const integer = std::get_if<int64_t>(&cell)) return static_cast<double>(*integer);
  return std::get<double>(cell);
}

std::string plain(const Cell& cell) {
  if (const auto* const text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* const truth = std::get_if<bool>(&cell)) return *truth ? "yes" : "no";
  if (const auto* const integer = std::get_if<int64_t>(&cell)) return std::to_string(*integer);
  if (const auto* const real = std::get_if<double>(&cell)) return fmt::format("{:.4g}", *real);
  return kNothing;
}

nlohmann::ordered_json to_json(const Cell& cell) {
  if (const auto* const text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* const truth = std::get_if<bool>(&cell)) return *truth;
  if (const auto* const integer = std::get_if<int64_t>(&cell)) return *integer;
  // Six digits: more would be noise.
  if (const auto* const real = std::get_if<double>(&cell)) return std::stod(fmt::format("{:.6g}", *real));
  return nullptr;
}

std::string csv_cell(const Cell& cell) {
  const auto* const text = std::get_if<std::string>(&cell);
  if (!text) return std::holds_alternative<std::monostate>(cell) ? "" : to_json(cell).dump();
  if (text->find_first_of(",\"\n") == std::string::npos) return *text;
  std::string quoted;
  for (const char c : *text) quoted.append(c == '"' ? 2 : 1, c);
  return fmt::format("\"{}\"", quoted);
}

std::string shown(const Column& column, const Cell& cell) {
  return column.show && is_number(cell) ? column.show(cell) : plain(cell);
}

}  // namespace

std::string as_count(const Cell& cell) { return count_text(std::llround(number_in(cell))); }
std::string as_size(const Cell& cell) { return size_text(std::llround(number_in(cell))); }
std::string as_time(const Cell& cell) { return time_text(number_in(cell)); }
std::string as_error(const Cell& cell) { return error_text(number_in(cell)); }
std::string as_giga(const Cell& cell) { return time_text(number_in(cell) * 1e-9); }
std::string as_decimal(const Cell& cell) { return fmt::format("{:.1f}", number_in(cell)); }

std::string Table::render(Format format) const {
  switch (format) {
    case Format::json:
      return render_json();
    case Format::csv:
      return render_csv();
    default:
      return render_text();
  }
}

// For people: a column of its own, or part of the caption, or neither.
bool Table::is_column(size_t column) const {
  if (columns_[column].place != Column::Place::caption) return columns_[column].place == Column::Place::shown;
  return !std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) { return row[column] == rows_[0][column]; });
}

// What all rows have in common: "heading value, heading value", in lines that fit.
std::string Table::render_caption() const {
  constexpr size_t kWidth = 98;
  std::string text, line;
  for (size_t c = 0; c < columns_.size() && !rows_.empty(); ++c) {
    if (is_column(c) || columns_[c].place != Column::Place::caption) continue;
    if (std::holds_alternative<std::monostate>(rows_[0][c])) continue;
    const std::string part = fmt::format("{} {}", columns_[c].heading, shown(columns_[c], rows_[0][c]));
    if (line.size() + part.size() > kWidth) text += std::exchange(line, "") + ",\n";
    line += (line.empty() ? "" : ", ") + part;
  }
  return line.empty() ? text : text + line + "\n";
}

std::string Table::render_text() const {
  struct Strip {
    size_t width;
    bool numbers;  // to the right; words to the left
    std::vector<std::string> texts;
  };
  std::vector<Strip> strips;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (!is_column(c)) continue;
    Strip& strip = strips.emplace_back(Strip{0, false, {columns_[c].heading}});
    for (const auto& row : rows_) {
      strip.texts.push_back(shown(columns_[c], row[c]));
      strip.numbers = strip.numbers || is_number(row[c]);
    }
    for (const std::string& text : strip.texts) strip.width = std::max(strip.width, text.size());
  }
  std::string text = render_caption();
  for (size_t line = 0; line <= rows_.size(); ++line) {
    std::string row;
    for (const Strip& strip : strips) {
      row += fmt::format(fmt::runtime(strip.numbers ? "{:>{}}  " : "{:<{}}  "), strip.texts[line], strip.width);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += (line == 0 ? bold(row) : row) + "\n";
  }
  return text;
}

std::string Table::render_json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (size_t c = 0; c < columns_.size(); ++c) object[columns_[c].key] = to_json(row[c]);
    list.push_back(std::move(object));
  }
  return list.dump(2) + "\n";
}

std::string Table::render_csv() const {
  std::string text;
  for (size_t c = 0; c < columns_.size(); ++c) text += fmt::format("{}{}", c ? "," : "", columns_[c].key);
  text += '\n';
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) text += fmt::format("{}{}", c ? "," : "", csv_cell(row[c]));
    text += '\n';
  }
  return text;
}

std::string bold(std::string_view text) {
  static const bool wanted = [] {
    const char* const terminal = std::getenv("TERM");
    return isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR") && terminal && std::string_view(terminal) != "dumb";
  }();
  return wanted ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
}

}  // namespace tilewise::cli
