// The options of one command, declared once: name, place for the value, rule, help. CLI11 stays behind this header,
// because every file that includes it takes seconds to compile; values are read strictly (no octal, no overflow).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/failure.h"

namespace CLI {
class App;
}

namespace tilewise::cli {

struct Bounds {
  int64_t least, most;
};
inline constexpr Bounds kExtent = {1, int64_t{1} << 40};  // sizes of tensors; their products are checked apart
inline constexpr Bounds kLength = {0, int64_t{1} << 40};  // lengths, which may be zero

class Arguments {
 public:
  explicit Arguments(CLI::App& app) : app_(app) {}

  void group(const char* heading) { group_ = heading; }  // of the options that follow
  void flag(const std::string& name, bool& value, const std::string& help);
  void integer(const std::string& name, int64_t& value, Bounds bounds, const std::string& help);
  void integer(const std::string& name, std::optional<int64_t>& value, Bounds bounds, const std::string& help);
  void bits(const std::string& name, std::optional<uint64_t>& value, const std::string& help);  // any 64
  void number(const std::string& name, std::optional<double>& value, const std::string& help);
  void text(const std::string& name, std::string& value, const char* placeholder, const std::string& help);
  void choice(const std::string& name, std::string& value, std::vector<std::string> allowed, const std::string& help);
  // Lists: values with commas between.
  void integers(const std::string& name, std::vector<int64_t>& values, Bounds bounds, const std::string& help);
  void texts(const std::string& name, std::vector<std::string>& values, const char* placeholder,
             const std::string& help);
  void choices(const std::string& name, std::vector<std::string>& values, std::vector<std::string> allowed,
               const std::string& help);
  void excludes(const std::string& name, const std::string& other);  // both at once are refused

 private:
  void option(const std::string& name, const std::string& shown, const std::string& help,
              const std::function<void(const std::string&)>& set);

  CLI::App& app_;
  std::string group_ = "Options";
};

using Action = std::function<ExitCode()>;

struct Command {
  const char* name;
  const char* summary;
  const char* notes;  // at the end of --help: examples and what the output means
  Action (*declare)(Arguments& arguments);
};

}  // namespace tilewise::cli
