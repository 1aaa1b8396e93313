#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/threads.h"

namespace tilewise {
namespace {

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

// Cores of time that the group may use in a period; infinity if it is not limited.
double limit_of(const char* quota_file, const char* period_file) {
  double quota = -1, period = 100000;
  if (FILE* file = std::fopen(quota_file, "re")) {
    if (std::fscanf(file, "%lf %lf", &quota, &period) < 1) quota = -1;  // "max 100000" has no number
    std::fclose(file);
  }
  if (period_file) {
    if (FILE* file = std::fopen(period_file, "re")) {
      if (std::fscanf(file, "%lf", &period) < 1) quota = -1;
      std::fclose(file);
    }
  }
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

// The limits of a group bind those below it, so the least one on the way up counts.
double least_limit(const char* root, const char* quota, const char* period, char* group) {
  double least = INFINITY;
  while (true) {
    char quota_file[600], period_file[600];
    std::snprintf(quota_file, sizeof quota_file, "%s%s/%s", root, group, quota);
    std::snprintf(period_file, sizeof period_file, "%s%s/%s", root, group, period ? period : "");
    least = std::min(least, limit_of(quota_file, period ? period_file : nullptr));
    char* last = std::strrchr(group, '/');
    if (!last) return least;
    *last = 0;
  }
}

double cgroup_limit() {
  FILE* file = std::fopen("/proc/self/cgroup", "re");
  if (!file) return INFINITY;
  double least = INFINITY;
  char line[512];
  while (std::fgets(line, sizeof line, file)) {  // "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1)
    line[std::strcspn(line, "\n")] = 0;
    char* controllers = std::strchr(line, ':');
    char* group = controllers ? std::strchr(controllers + 1, ':') : nullptr;
    if (!group) continue;
    *group++ = 0;
    ++controllers;
    if (*controllers == 0) {
      least = std::min(least, least_limit("/sys/fs/cgroup", "cpu.max", nullptr, group));
    } else if (std::strncmp(controllers, "cpu", 3) == 0 && (controllers[3] == 0 || controllers[3] == ',')) {
      least = std::min(least, least_limit("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", group));
    }
  }
  std::fclose(file);
  return least;
}

}  // namespace

int available_cores() {
  static const double limit = cgroup_limit();
  return static_cast<int>(std::max(1.0, std::min<double>(cores_of_affinity(), std::ceil(limit))));
}

}  // namespace tilewise
