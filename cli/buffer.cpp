#include "cli/buffer.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "cli/failure.h"
#include "cli/text.h"

namespace tilewise::cli {
namespace {

int64_t number_in(const char* path) {  // -1: not there, or "max"
  int64_t value = -1;
  std::ifstream file(path);
  return file >> value ? value : -1;
}

int64_t machine_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, rest; file >> key; std::getline(file, rest)) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return INT64_MAX;
}

// What a limit of this process (ulimit) leaves, given the pages in use.
int64_t left_of(decltype(RLIMIT_AS) resource, int64_t pages) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(INT64_MAX)) return INT64_MAX;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE));
}

int64_t process_available() {
  int64_t total = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
  std::ifstream("/proc/self/statm") >> total >> resident >> shared >> text >> library >> data;
  return std::min(left_of(RLIMIT_AS, total), left_of(RLIMIT_DATA, data));
}

}  // namespace

int64_t memory_available() {
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  const int64_t group = limit >= 0 && used >= 0 ? std::max<int64_t>(0, limit - used) : INT64_MAX;
  return std::min({group, machine_available(), process_available()});
}

Buffer::Buffer(int64_t bytes, const char* purpose) {
  if (bytes <= 0) return;
  const int64_t available = memory_available();
  void* pages = MAP_FAILED;
  if (bytes <= available) {
    pages = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (pages == MAP_FAILED) {
    fail(ExitCode::out_of_memory, "out of memory: {} takes {}, {} available", purpose, size_text(bytes),
         size_text(available));
  }
  data_ = static_cast<char*>(pages);
  size_ = bytes;
}

Buffer::~Buffer() {
  if (data_) munmap(data_, static_cast<size_t>(size_));
}

}  // namespace tilewise::cli
