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

struct Path {
  char chars[512];
};

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
double limit_of_v2(const char* group) {
  Path path;
  std::snprintf(path.chars, sizeof path.chars, "/sys/fs/cgroup%s/cpu.max", group);
  const SmallFile file(path.chars);  // "200000 100000" or "max 100000"
  const double quota = leading_number(file.text, -1);
  const char* space = std::strchr(file.text, ' ');
  const double period = space ? leading_number(space + 1, kPeriod) : kPeriod;
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

double limit_of_v1(const char* group) {
  Path quota_path, period_path;
  std::snprintf(quota_path.chars, sizeof quota_path.chars, "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", group);
  std::snprintf(period_path.chars, sizeof period_path.chars, "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", group);
  const double quota = leading_number(SmallFile(quota_path.chars).text, -1);
  const double period = leading_number(SmallFile(period_path.chars).text, kPeriod);
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

// The limits of a group bind those below it, so the least one on the way up counts. Cuts `group` short.
double least_limit(double (*limit_of)(const char* group), char* group) {
  double least = INFINITY;
  while (true) {
    least = std::min(least, limit_of(group));
    char* last = std::strrchr(group, '/');
    if (!last) return least;
    *last = 0;
  }
}

double limit_of_line(char* line) {  // "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1)
  char* controllers = std::strchr(line, ':');
  char* group = controllers ? std::strchr(controllers + 1, ':') : nullptr;
  if (!group) return INFINITY;
  *group++ = 0;
  ++controllers;
  if (*controllers == 0) return least_limit(limit_of_v2, group);
  const bool limits_cpu = std::strncmp(controllers, "cpu", 3) == 0 && (controllers[3] == 0 || controllers[3] == ',');
  return limits_cpu ? least_limit(limit_of_v1, group) : INFINITY;
}

double cgroup_limit() {
  SmallFile groups("/proc/self/cgroup");
  double least = INFINITY;
  for (char* line = groups.text; *line;) {
    char* next = line + std::strcspn(line, "\n");
    if (*next) *next++ = 0;
    least = std::min(least, limit_of_line(line));
    line = next;
  }
  return least;
}

}  // namespace

int available_cores() {
  static const double limit = cgroup_limit();
  return static_cast<int>(std::max(1.0, std::min<double>(cores_of_affinity(), std::ceil(limit))));
}

}  // namespace tilewise
