#include "cli/run_files.h"

#include <algorithm>
#include <array>

#include "cli/failure.h"
#include "cli/files/npy.h"
#include "cli/files/safetensors.h"
#include "cli/tensors.h"

namespace tilewise::cli {
namespace {

constexpr const char* kAll = "all";  // role of a file that takes every result

struct Given {
  const char* role;
  const std::string& text;  // as on the command line; empty: not given
};

// A tensor that every problem has: without an option it is the one of INPUT that has its role for a name.
struct Needed {
  const char* role;
  const char* option;
  const std::string& text;
};

bool is_npy(const std::string& name) { return name.ends_with(".npy"); }

void check_has_source(const Needed& needed, bool has_input) {
  if (has_input || !needed.text.empty()) return;
  fail(ExitCode::usage, "{0} is not given, and there is no INPUT; give {0} FILE.npy or a safetensors file",
       needed.option);
}

void check_together(const std::string& path) {
  if (!is_npy(path)) return;
  fail(ExitCode::usage, "--output: {} does not end in .safetensors (for .npy: --out, --lse, --dq, --dk, --dv)",
       in_quotes(path));
}

void check_separate(const Given& given, bool gradients) {
  if (!is_npy(given.text)) fail(ExitCode::usage, "--{}: {} does not end in .npy", given.role, in_quotes(given.text));
  if (given.role[0] == 'd' && !gradients) fail(ExitCode::usage, "--{}: gradients need --dout", given.role);
}

}  // namespace

RunInputs::RunInputs(const RunOptions& o) {
  std::optional<SafetensorsFile> file;
  if (!o.input.empty()) file.emplace(o.input);
  const auto take = [&](const char* role, const std::string& text) {
    const bool npy = is_npy(text);
    if (!npy && !file) {
      fail(ExitCode::usage, "{}: {} is not an .npy file, so INPUT, a safetensors file that has it, is needed", role,
           in_quotes(text));
    }
    arrays_.emplace(role, npy ? read_npy(text) : file->read(text));
    names_[role] = npy ? text : o.input + ": " + text;
  };
  const std::array needed = {Needed{"q", "--query", o.query}, Needed{"k", "--key", o.key},
                             Needed{"v", "--value", o.value}};
  for (const Needed& tensor : needed) check_has_source(tensor, file.has_value());
  for (const Needed& tensor : needed) take(tensor.role, tensor.text.empty() ? tensor.role : tensor.text);
  for (const Given& given :
       {Given{"dout", o.dout}, Given{"bias", o.bias}, Given{"alibi_slopes", o.alibi_slopes}, Given{"sink", o.sink}}) {
    if (!given.text.empty()) take(given.role, given.text);
  }
}

tw_tensor RunInputs::sequence(const std::string& role, Layout layout) const {
  return sequence_view(names_.at(role), array(role), layout);
}

tw_tensor RunInputs::trailing(const std::string& role, int axes) const {
  return has(role) ? trailing_view(names_.at(role), array(role), axes) : tw_tensor{};
}

RunOutputs::RunOutputs(const RunOptions& o) {
  const auto add = [&](const char* role, const std::string& path) {
    auto file = std::make_unique<OutputFile>(path);
    const bool twice =
        std::any_of(files_.begin(), files_.end(), [&](const auto& f) { return f.second->replaces_same(*file); });
    if (twice) fail(ExitCode::usage, "{}: two outputs go into this file", path);
    files_.emplace_back(role, std::move(file));
  };
  check_together(o.output);
  if (!o.output.empty()) add(kAll, o.output);
  for (const Given& given :
       {Given{"out", o.out}, Given{"lse", o.lse}, Given{"dq", o.dq}, Given{"dk", o.dk}, Given{"dv", o.dv}}) {
    if (given.text.empty()) continue;
    check_separate(given, !o.dout.empty());
    add(given.role, given.text);
  }
  if (files_.empty()) fail(ExitCode::usage, "no output: give --output FILE.safetensors or --out FILE.npy");
}

bool RunOutputs::wants(const std::string& role) const {
  return std::any_of(files_.begin(), files_.end(), [&](const auto& f) { return f.first == kAll || f.first == role; });
}

void RunOutputs::write(const NamedArrays& results) {
  for (const auto& [role, file] : files_) {
    if (role == kAll) write_safetensors(*file, results);
    for (const auto& [name, array] : results) {
      if (role == name) write_npy(*file, *array);
    }
    file->sync();
  }
  for (const auto& named : files_) named.second->commit();
}

std::vector<std::string> RunOutputs::paths() const {
  std::vector<std::string> all;
  for (const auto& named : files_) all.push_back(named.second->path());
  return all;
}

}  // namespace tilewise::cli
