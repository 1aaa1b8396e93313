// The limits that control groups set, read from made-up files.
#include "core/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/threads.h"

namespace tilewise {
namespace {

namespace fs = std::filesystem;

class CgroupLimit : public testing::Test {
 protected:
  CgroupLimit() : root_(fs::temp_directory_path() / ("cgroup-" + std::to_string(getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~CgroupLimit() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void groups(const std::string& lines) const { put("proc/self/cgroup", lines); }
  void v2(const std::string& group, const std::string& text) const { put("sys/fs/cgroup" + group + "/cpu.max", text); }
  void v1(const std::string& group, const std::string& quota, const std::string& period) const {
    put("sys/fs/cgroup/cpu" + group + "/cpu.cfs_quota_us", quota);
    put("sys/fs/cgroup/cpu" + group + "/cpu.cfs_period_us", period);
  }
  double limit() const { return cgroup_limit(root_.c_str()); }

 private:
  fs::path root_;
};

TEST_F(CgroupLimit, NoFilesNoLimit) { EXPECT_EQ(limit(), INFINITY); }

TEST_F(CgroupLimit, OfAGroup) {
  groups("0::/a/b\n");
  EXPECT_EQ(limit(), INFINITY);
  v2("/a/b", "max 100000\n");
  EXPECT_EQ(limit(), INFINITY);
  v2("/a/b", "150000 100000\n");
  EXPECT_EQ(limit(), 1.5);
  v2("/a/b", "50000 20000\n");
  EXPECT_EQ(limit(), 2.5);
  v2("/a/b", "300000\n");  // the period by default
  EXPECT_EQ(limit(), 3);
}

TEST_F(CgroupLimit, OfTheGroupsAboveIt) {
  groups("0::/a/b\n");
  v2("/a/b", "400000 100000\n");
  v2("/a", "200000 100000\n");
  EXPECT_EQ(limit(), 2);
  v2("", "100000 100000\n");
  EXPECT_EQ(limit(), 1);
}

// A container sees the files of its group at the root of the mount, and often its full name in /proc.
TEST_F(CgroupLimit, OfAContainer) {
  v2("", "300000 100000\n");
  for (const char* name : {"/", "/docker/0123abc", "/../../user.slice"}) {
    groups(std::string("0::") + name + "\n");
    EXPECT_EQ(limit(), 3) << name;
  }
  groups("0::/without a new line");
  EXPECT_EQ(limit(), 3);
}

TEST_F(CgroupLimit, OfVersionOne) {
  groups("12:cpuset:/x\n4:cpu,cpuacct:/a/b\n1:name=systemd:/a\n");
  v1("/a/b", "-1\n", "100000\n");
  EXPECT_EQ(limit(), INFINITY);
  v1("/a/b", "250000\n", "100000\n");
  EXPECT_EQ(limit(), 2.5);
  v1("/a", "75000\n", "50000\n");
  EXPECT_EQ(limit(), 1.5);
  v1("/x", "10000\n", "100000\n");  // that of cpuset only
  EXPECT_EQ(limit(), 1.5);
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");  // the period by default
  EXPECT_EQ(limit(), 1);
}

// Red Hat writes cpuacct first.
TEST_F(CgroupLimit, OfVersionOneInAnyOrderOfControllers) {
  for (const char* controllers : {"cpu", "cpu,cpuacct", "cpuacct,cpu", "cpuacct,cpu,cpuset"}) {
    groups(std::string("4:") + controllers + ":/a\n");
    v1("/a", "200000\n", "100000\n");
    EXPECT_EQ(limit(), 2) << controllers;
  }
  groups("4:cpuset,cpuacct:/a\n");
  EXPECT_EQ(limit(), INFINITY);
}

TEST_F(CgroupLimit, OfBothVersions) {
  groups("4:cpu,cpuacct:/a\n0::/b\n");
  v1("/a", "200000\n", "100000\n");
  v2("/b", "100000 100000\n");
  EXPECT_EQ(limit(), 1);
}

TEST_F(CgroupLimit, NonsenseIsNoLimit) {
  for (const char* lines : {"", "\n\n", "0", "0:", "0:cpu", "::", "0::", "4:cpu:", "no cgroup"}) {
    groups(lines);
    EXPECT_EQ(limit(), INFINITY) << lines;
  }
  groups("0::/a\n");
  for (const char* text : {"", "\n", "0 100000\n", "-5 100000\n", "100000 0\n", "max\n", "nan 1\n", "x 100000\n"}) {
    v2("/a", text);
    EXPECT_EQ(limit(), INFINITY) << text;
  }
  groups("0::/" + std::string(3000, 'x') + "\n");  // longer than any path that is read
  v2("", "100000 100000\n");
  EXPECT_EQ(limit(), 1);
}

// A child process, whose mask this is: the test itself may have been given one core only.
TEST(Affinity, IsAskedForAtEachCall) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0, cores = 0;
    cpu_set_t some;
    CPU_ZERO(&some);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &all)) continue;
      CPU_SET(cpu, &some);
      const double limit = std::min<double>(++cores, std::ceil(cgroup_limit("")));
      wrong += sched_setaffinity(0, sizeof some, &some) != 0;
      wrong += available_cores() != static_cast<int>(limit);
    }
    _exit(wrong == 0 && cores > 0 ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Groups nest: a quota binds all below it, whatever they say themselves, and a mask binds beside it.
TEST_F(CgroupLimit, OfDeeplyNestedGroups) {
  groups("0::/kubepods/burstable/pod1/container\n");
  v2("/kubepods/burstable/pod1/container", "max 100000\n");
  v2("/kubepods/burstable/pod1", "350000 100000\n");
  v2("/kubepods/burstable", "max 100000\n");
  v2("/kubepods", "1600000 100000\n");
  EXPECT_EQ(limit(), 3.5);
  groups("3:cpu:/kubepods/burstable/pod1/container\n");
  v1("/kubepods/burstable/pod1", "50000\n", "100000\n");
  v1("/kubepods/burstable/pod1/container", "-1\n", "100000\n");
  EXPECT_EQ(limit(), 0.5);
}

}  // namespace
}  // namespace tilewise
