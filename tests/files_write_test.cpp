// The command's file writers: an output appears whole, or not at all.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "files_fixture.h"

namespace tilewise::cli {
namespace {

TEST_F(Files, AnOutputAppearsOnlyWithItsCommit) {
  put("a", "old");
  {
    OutputFile out(path("a"));
    out.write("new");
    out.sync();
    EXPECT_EQ(get("a"), "old");
  }
  EXPECT_EQ(get("a"), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
  OutputFile out(path("a"));
  out.write("new");
  out.sync();
  out.commit();
  EXPECT_EQ(get("a"), "new");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(Files, AnOutputKeepsModeAndLink) {
  put("a", "old");
  fs::permissions(path("a"), fs::perms(0640));
  fs::create_symlink("a", path("link"));
  OutputFile out(path("link"));
  out.write("new");
  out.sync();
  out.commit();
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(get("a"), "new");
  EXPECT_EQ(fs::status(path("a")).permissions(), fs::perms(0640));
}

TEST_F(Files, AFullDiskLeavesTheOldFileAndNothingElse) {
  put("a", "old");
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {4096, before.rlim_max};
  const std::string message = failure_of(
      [&] {
        OutputFile out(path("a"));
        setrlimit(RLIMIT_FSIZE, &small);
        out.write(std::string(100'000, 'x'));
      },
      ExitCode::cannot_write);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("a: cannot write: File too large"), std::string::npos) << message;
  EXPECT_EQ(get("a"), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(Files, TargetsThatAreNoFilesAreLeftAlone) {
  EXPECT_NE(failure_of([&] { OutputFile out(folder_.string()); }, ExitCode::cannot_write).find("is a folder"),
            std::string::npos);
  EXPECT_NE(failure_of([] { OutputFile out("/dev/null"); }, ExitCode::cannot_write).find("not a regular file"),
            std::string::npos);
  EXPECT_NE(failure_of([&] { OutputFile out(path("no/such")); }, ExitCode::cannot_write).find("cannot create"),
            std::string::npos);
  EXPECT_EQ(names(), std::vector<std::string>{});
}

TEST_F(Files, ASignalLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) {
    EXPECT_EXIT(
        {
          OutputFile out(path("a"));
          out.write("half");
          raise(signal);
        },
        testing::KilledBySignal(signal), "");
    EXPECT_EQ(names(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace tilewise::cli
