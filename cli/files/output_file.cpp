#include "cli/files/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

namespace fs = std::filesystem;

// Paths of temporaries that exist now, for the signal handler.
constexpr int kSlots = 8;
std::array<std::atomic<const char*>, kSlots> g_temporaries;
static_assert(std::atomic<const char*>::is_always_lock_free);

void remove_temporaries_and_die(int signal) {
  remove_temporaries();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// These stop the process, continue it or do nothing; all others end it.
constexpr std::array kHarmless = {SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};

void install_handlers() {
  static const bool once = [] {
    std::signal(SIGXFSZ, SIG_IGN);  // write() then says EFBIG
    for (int signal = 1; signal <= SIGRTMAX; ++signal) {
      if (std::find(kHarmless.begin(), kHarmless.end(), signal) != kHarmless.end()) continue;
      struct sigaction old = {};
      const bool known = sigaction(signal, nullptr, &old) == 0;
      // What is ignored stays so (nohup), and a sanitizer keeps its own handlers.
      const bool ends = !(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL;
      if (known && ends) std::signal(signal, remove_temporaries_and_die);
    }
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

// Where links lead, also those to a file that is not there yet; its folder by its canonical name. If that cannot be
// told, the path as it is: opening it then says why.
std::string target_of(const std::string& given) {
  constexpr int kMostLinks = 40;
  fs::path path = given;
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) return given;
    path = path.parent_path() / next;
  }
  const fs::path folder = fs::canonical(path.has_parent_path() ? path.parent_path() : fs::path("."), error);
  return error ? given : (folder / path.filename()).string();
}

}  // namespace

void remove_temporaries() noexcept {
  for (const auto& slot : g_temporaries) {
    if (const char* const path = slot.load()) unlink(path);
  }
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(target_of(path_)) {
  struct stat status;
  const bool exists = stat(target_.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) fail_with("open", errno);
  if (exists && S_ISDIR(status.st_mode)) fail(ExitCode::cannot_write, "{}: is a folder", path_);
  if (exists && !S_ISREG(status.st_mode)) fail(ExitCode::cannot_write, "{}: is not a regular file", path_);
  if (exists && access(target_.c_str(), W_OK) != 0) fail_with("open", errno);
  if (exists) old_.emplace(status.st_dev, status.st_ino);
  install_handlers();
  create_beside_target();
  if (exists) (void)!fchmod(descriptor_, status.st_mode & 07777);
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::create_beside_target() {
  const fs::path folder = fs::path(target_).parent_path();
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

bool OutputFile::replaces_same(const OutputFile& other) const {
  return target_ == other.target_ || (old_ && old_ == other.old_);
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
