// A table that a command prints: for people, as JSON (one list of rows) or as CSV.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tilewise::cli {

using Cell = std::variant<std::monostate, bool, int64_t, double, std::string>;  // monostate: null

enum class Format { text, json, csv };

struct Column {
  enum class Place {
    shown,    // in every format
    caption,  // for people only once, above the table, if it is the same in all rows; not at all if it is null there
    record    // in JSON and CSV only
  };
  const char* key;      // in JSON and CSV: never changes
  const char* heading;  // for people
  Place place = Place::record;
  std::string (*show)(const Cell& cell) = nullptr;  // null: as it is
};

// Ways to show a cell to people.
std::string as_count(const Cell& cell);
std::string as_size(const Cell& cell);
std::string as_time(const Cell& cell);
std::string as_error(const Cell& cell);
std::string as_giga(const Cell& cell);     // 1234567890 as "1.23"
std::string as_decimal(const Cell& cell);  // "12.3"

template <typename T>
Cell cell_of(const std::optional<T>& value) {
  return value ? Cell(*value) : Cell();
}

// Columns or cells one after another.
template <typename T>
std::vector<T> joined(std::vector<T> first, const std::vector<T>& middle, const std::vector<T>& last) {
  first.insert(first.end(), middle.begin(), middle.end());
  first.insert(first.end(), last.begin(), last.end());
  return first;
}

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }  // one cell a column
  void add_rows_of(const Table& other) { rows_.insert(rows_.end(), other.rows_.begin(), other.rows_.end()); }
  bool empty() const { return rows_.empty(); }
  std::string render(Format format) const;

 private:
  std::string render_text() const;
  std::string render_caption() const;
  std::string render_json() const;
  std::string render_csv() const;
  bool is_column(size_t column) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// Bold, if standard output is a terminal that wants it; otherwise the text alone.
std::string bold(std::string_view text);

}  // namespace tilewise::cli
