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
#include <map>
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

// Where the command runs, as far as it is not usual.
constexpr const char* kClosed = "closed";
struct Surroundings {
  std::string out = {}, err = {};        // paths of standard output and standard error, or kClosed
  rlim_t largest_file = RLIM_INFINITY;   // bytes that fit on the disk, so to say
  rlim_t address_space = RLIM_INFINITY;  // bytes
  std::map<std::string, std::string> environment = {};
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

  Finished tilewise(const std::vector<std::string>& args, const Surroundings& around = {}) const {
    return wait_for(start(args, around), around);
  }

  pid_t start(const std::vector<std::string>& args, const Surroundings& around = {}) const {
    std::vector<char*> argv = {const_cast<char*>("tilewise")};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child != 0) return child;
    connect(STDOUT_FILENO, around.out, folder_ / "out");
    connect(STDERR_FILENO, around.err, folder_ / "err");
    if (chdir(work().c_str()) != 0) _exit(126);
    limit(RLIMIT_FSIZE, around.largest_file);
    limit(RLIMIT_AS, around.address_space);
    for (const auto& [name, value] : around.environment) setenv(name.c_str(), value.c_str(), 1);
    execv(TILEWISE_COMMAND, argv.data());
    _exit(127);
  }

  Finished wait_for(pid_t child, const Surroundings& around = {}) const {
    int status = 0;
    waitpid(child, &status, 0);
    Finished finished;
    if (WIFEXITED(status)) finished.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) finished.signal = WTERMSIG(status);
    if (around.out.empty()) finished.out = text_of(folder_ / "out");
    if (around.err.empty()) finished.err = text_of(folder_ / "err");
    return finished;
  }

 private:
  static void connect(int descriptor, const std::string& given, const fs::path& usual) {
    if (given == kClosed) {
      close(descriptor);
    } else {
      dup2(open((given.empty() ? usual : fs::path(given)).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), descriptor);
    }
  }
  template <typename Resource>
  static void limit(Resource resource, rlim_t most) {
    const rlimit limits = {most, RLIM_INFINITY};
    if (most != RLIM_INFINITY) setrlimit(resource, &limits);
  }

  fs::path folder_;
};

inline bool holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace tilewise::cli
