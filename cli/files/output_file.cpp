#include "cli/files/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

// Paths of temporaries that exist now, for the signal handler.
constexpr int kSlots = 8;
std::array<std::atomic<const char*>, kSlots> g_temporaries;
static_assert(std::atomic<const char*>::is_always_lock_free);

void remove_temporaries_and_die(int signal) {
  for (const auto& slot : g_temporaries) {
    if (const char* const path = slot.load()) unlink(path);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void install_handlers() {
  static const bool once = [] {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) {
      struct sigaction old = {};
      sigaction(signal, nullptr, &old);
      if (old.sa_handler != SIG_IGN) std::signal(signal, remove_temporaries_and_die);  // nohup stays in force
    }
    std::signal(SIGXFSZ, SIG_IGN);  // write() then says EFBIG
    return true;
  }();
  (void)once;
}

int remember(const char* path) {
  for (int i = 0; i < kSlots; ++i) {
    const char* free = nullptr;
    if (g_temporaries[static_cast<size_t>(i)].compare_exchange_strong(free, path)) return i;
  }
  return -1;
}

void forget(int slot) {
  if (slot >= 0) g_temporaries[static_cast<size_t>(slot)].store(nullptr);
}

std::string without_links(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path real = std::filesystem::canonical(path, ignored);
  return real.empty() ? path : real.string();
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(without_links(path_)) {
  struct stat status;
  const bool exists = stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail(ExitCode::cannot_write, "{}: is a folder", path_);
  if (exists && !S_ISREG(status.st_mode)) fail(ExitCode::cannot_write, "{}: is not a regular file", path_);
  if (exists && access(target_.c_str(), W_OK) != 0) fail_with("open", errno);
  install_handlers();
  create_beside_target();
  if (exists) (void)!fchmod(descriptor_, status.st_mode & 07777);
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::create_beside_target() {
  const std::filesystem::path folder = std::filesystem::path(target_).parent_path();
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = (folder / fmt::format(".tilewise.{}.{}.tmp", getpid(), attempt)).string();
    slot_ = remember(temporary_.c_str());
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) return;
    const int error = errno;
    forget(slot_);
    if (error != EEXIST || attempt == 1000) fail_with("create a file beside it", error);
  }
}

void OutputFile::write(std::string_view bytes) {
  constexpr size_t kLargest = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kLargest));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with("write", errno);
    bytes.remove_prefix(static_cast<size_t>(done));
  }
}

void OutputFile::sync() {
  if (fsync(descriptor_) != 0) fail_with("write", errno);
  const int closed = close(std::exchange(descriptor_, -1));
  if (closed != 0) fail_with("write", errno);
}

void OutputFile::commit() {
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail_with("replace", errno);
  forget(std::exchange(slot_, -1));
  temporary_.clear();
}

void OutputFile::discard() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) unlink(temporary_.c_str());
  forget(std::exchange(slot_, -1));
  temporary_.clear();
}

void OutputFile::fail_with(const char* step, int error) {
  discard();
  fail(ExitCode::cannot_write, "{}: cannot {}: {}", path_, step, std::strerror(error));
}

}  // namespace tilewise::cli
