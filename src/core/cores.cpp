#include "core/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/small_file.h"
#include "core/threads.h"

namespace tilewise {
namespace {

constexpr double kPeriod = 100000;  // microseconds, the kernel's default

// What a file below `root` says; "" if it cannot be read.
SmallFile file_of(const char* root, const char* folder, const char* group, const char* name) {
  char path[1024];
  std::snprintf(path, sizeof path, "%s%s%s%s", root, folder, group, name);
  return SmallFile(path);
}

int cores_of_affinity() {
  constexpr int kCpus = 8192;
  unsigned long set[kCpus / (8 * sizeof(unsigned long))] = {};
  if (sched_getaffinity(0, sizeof set, reinterpret_cast<cpu_set_t*>(set)) != 0) {
    return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  }
  int cores = 0;
  for (unsigned long word : set) cores += __builtin_popcountl(word);
  return std::max(1, cores);
}

// Cores of time that a group may use in a period; infinity if it is not limited.
double limit_of_v2(const char* root, const char* group) {
  const SmallFile file = file_of(root, "/sys/fs/cgroup", group, "/cpu.max");  // "200000 100000" or "max 100000"
  const double quota = leading_number(file.text, -1);
  const char* space = std::strchr(file.text, ' ');
  const double period = space ? leading_number(space + 1, kPeriod) : kPeriod;
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

double limit_of_v1(const char* root, const char* group) {
  constexpr const char* kFolder = "/sys/fs/cgroup/cpu";
  const double quota = leading_number(file_of(root, kFolder, group, "/cpu.cfs_quota_us").text, -1);
  const double period = leading_number(file_of(root, kFolder, group, "/cpu.cfs_period_us").text, kPeriod);
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

// The limits of a group bind those below it, so the least one on the way up counts. Cuts `group` short.
double least_limit(double (*limit_of)(const char* root, const char* group), const char* root, char* group) {
  double least = INFINITY;
  while (true) {
    least = std::min(least, limit_of(root, group));
    char* last = std::strrchr(group, '/');
    if (!last) return least;
    *last = 0;
  }
}

// "cpuacct,cpu" does, "cpuset" does not.
bool names_cpu(const char* controllers) {
  while (true) {
    const size_t length = std::strcspn(controllers, ",");
    if (length == 3 && std::strncmp(controllers, "cpu", length) == 0) return true;
    if (controllers[length] == 0) return false;
    controllers += length + 1;
  }
}

double limit_of_line(const char* root, char* line) {  // "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1)
  char* controllers = std::strchr(line, ':');
  char* group = controllers ? std::strchr(controllers + 1, ':') : nullptr;
  if (!group) return INFINITY;
  *group++ = 0;
  ++controllers;
  if (*controllers == 0) return least_limit(limit_of_v2, root, group);
  return names_cpu(controllers) ? least_limit(limit_of_v1, root, group) : INFINITY;
}

}  // namespace

double cgroup_limit(const char* root) {
  SmallFile groups = file_of(root, "/proc/self/cgroup", "", "");
  double least = INFINITY;
  for (char* line = groups.text; *line;) {
    char* next = line + std::strcspn(line, "\n");
    if (*next) *next++ = 0;
    least = std::min(least, limit_of_line(root, line));
    line = next;
  }
  return least;
}

int available_cores() {
  static const double limit = cgroup_limit("");
  return static_cast<int>(std::max(1.0, std::min<double>(cores_of_affinity(), std::ceil(limit))));
}

}  // namespace tilewise
