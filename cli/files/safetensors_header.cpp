#include <nlohmann/json.hpp>

#include "cli/failure.h"
#include "cli/files/safetensors.h"

namespace tilewise::cli {
namespace {

// The parser calls one function for each token; what does not belong where it stands ends the parse.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(size_t) override {
    if (where_ == Where::outside) return enter(Where::top);
    if (where_ == Where::top && name_ == kMetadata) return enter(Where::metadata);
    if (where_ == Where::top) return enter(Where::tensor);
    return misplaced("an object");
  }

  bool end_object() override {
    switch (where_) {
      case Where::tensor:
        check_complete();
        return enter(Where::top);
      case Where::metadata:
        return enter(Where::top);
      default:
        return enter(Where::outside);
    }
  }

  bool start_array(size_t) override {
    if (where_ == Where::tensor && field_ == "shape") return enter(Where::shape);
    if (where_ == Where::tensor && field_ == "data_offsets") return enter(Where::offsets);
    return misplaced("an array");
  }

  bool end_array() override { return enter(Where::tensor); }

  bool key(string_t& text) override {
    switch (where_) {
      case Where::top:
        return start_entry(text);
      case Where::tensor:
        return start_field(text);
      default:  // metadata may hold any keys
        field_ = text;
        return true;
    }
  }

  bool string(string_t& text) override {
    if (where_ == Where::metadata) return true;
    if (where_ != Where::tensor || field_ != "dtype") return misplaced("a string");
    header_[name_].dtype = text;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (where_ != Where::shape && where_ != Where::offsets) return misplaced("a number");
    if (number > static_cast<number_unsigned_t>(INT64_MAX)) return out_of_range();
    (where_ == Where::shape ? header_[name_].shape : offsets_).push_back(static_cast<int64_t>(number));
    return true;
  }

  bool number_integer(number_integer_t) override { return out_of_range(); }
  bool number_float(number_float_t, const string_t&) override { return out_of_range(); }
  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool binary(binary_t&) override { return misplaced("binary data"); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ExitCode::bad_input, "header is not valid JSON at byte {} of it", position);
  }

 private:
  enum class Where { outside, top, metadata, tensor, shape, offsets };
  static constexpr const char* kMetadata = "__metadata__";

  bool enter(Where where) {
    where_ = where;
    return true;
  }

  bool start_entry(const std::string& name) {
    name_ = name;
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    offsets_.clear();
    const bool first = name == kMetadata ? !std::exchange(seen_metadata_, true) : header_.try_emplace(name).second;
    if (!first) fail(ExitCode::bad_input, "header names {} twice", in_quotes(name));
    return true;
  }

  bool start_field(const std::string& field) {
    field_ = field;
    bool* const seen = field == "dtype"          ? &seen_dtype_
                       : field == "shape"        ? &seen_shape_
                       : field == "data_offsets" ? &seen_offsets_
                                                 : nullptr;
    if (!seen) fail(ExitCode::bad_input, "tensor {}: unknown field {}", in_quotes(name_), in_quotes(field));
    if (std::exchange(*seen, true)) fail(ExitCode::bad_input, "tensor {}: field {} twice", in_quotes(name_), field);
    return true;
  }

  void check_complete() {
    if (!seen_dtype_ || !seen_shape_ || !seen_offsets_) {
      fail(ExitCode::bad_input, "tensor {}: dtype, shape and data_offsets are needed", in_quotes(name_));
    }
    if (offsets_.size() != 2) {
      fail(ExitCode::bad_input, "tensor {}: data_offsets holds {} numbers, not 2", in_quotes(name_), offsets_.size());
    }
    SafetensorsEntry& entry = header_[name_];
    entry.begin = offsets_[0], entry.end = offsets_[1];
  }

  [[noreturn]] bool misplaced(const char* what) const {
    if (where_ == Where::outside) fail(ExitCode::bad_input, "header is {}, not an object", what);
    if (where_ == Where::metadata)
      fail(ExitCode::bad_input, "__metadata__: {} is {}, not a string", in_quotes(field_), what);
    if (where_ == Where::top) fail(ExitCode::bad_input, "header: {} is {}, not an object", in_quotes(name_), what);
    fail(ExitCode::bad_input, "tensor {}: {} in {}", in_quotes(name_), what, field_);
  }

  [[noreturn]] bool out_of_range() const {
    if (where_ != Where::shape && where_ != Where::offsets) misplaced("a number");
    fail(ExitCode::bad_input, "tensor {}: {} is not made of integers from 0 to 2^63 - 1", in_quotes(name_), field_);
  }

  SafetensorsHeader header_;
  Where where_ = Where::outside;
  std::string name_, field_;
  std::vector<int64_t> offsets_;
  bool seen_metadata_ = false, seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json) {
  // The parser would take a NUL for the end, and a byte order mark for nothing.
  const size_t nul = json.find('\0');
  if (nul != std::string_view::npos) fail(ExitCode::bad_input, "header is not valid JSON at byte {} of it", nul + 1);
  if (json.starts_with("\xef\xbb\xbf")) fail(ExitCode::bad_input, "header starts with a byte order mark");
  HeaderReader reader;
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

}  // namespace tilewise::cli
