// Runs the command as a user does: a process of its own, in a folder of its own.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::cli {

namespace fs = std::filesystem;

struct Finished {
  int code = -1;   // exit code, or -1
  int signal = 0;  // that ended it, or 0
  std::string out, err;

  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(out); }
};

inline std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CliTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tilewise_cli_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fs::create_directory(folder_ / "work");
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path work() const { return folder_ / "work"; }  // where the command runs
  std::string put(const std::string& name, std::string_view bytes) const {
    std::ofstream(work() / name, std::ios::binary) << bytes;
    return name;
  }
  std::string get(const std::string& name) const { return text_of(work() / name); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(work())) all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

  // `largest_file`: bytes that fit on the disk, so to say.
  Finished tilewise(const std::vector<std::string>& args, rlim_t largest_file = RLIM_INFINITY,
                    const std::string& out_path = "") const {
    return wait_for(start(args, largest_file, out_path), out_path);
  }

  pid_t start(const std::vector<std::string>& args, rlim_t largest_file = RLIM_INFINITY,
              const std::string& out_path = "") const {
    const std::string out = out_path.empty() ? (folder_ / "out").string() : out_path, err = (folder_ / "err").string();
    std::vector<char*> argv = {const_cast<char*>("tilewise")};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child != 0) return child;
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
    if (chdir(work().c_str()) != 0) _exit(126);
    const rlimit limit = {largest_file, RLIM_INFINITY};
    if (largest_file != RLIM_INFINITY) setrlimit(RLIMIT_FSIZE, &limit);
    execv(TILEWISE_COMMAND, argv.data());
    _exit(127);
  }

  Finished wait_for(pid_t child, const std::string& out_path = "") const {
    int status = 0;
    waitpid(child, &status, 0);
    Finished finished;
    if (WIFEXITED(status)) finished.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) finished.signal = WTERMSIG(status);
    if (out_path.empty()) finished.out = text_of(folder_ / "out");
    finished.err = text_of(folder_ / "err");
    return finished;
  }

  fs::path folder_;
};

inline bool holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace tilewise::cli
