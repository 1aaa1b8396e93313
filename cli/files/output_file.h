// A file that appears whole or not at all: written beside its target, synced, renamed over it by commit(). Without a
// commit, or when a signal ends the process, nothing is left and the target stays as it was.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tilewise::cli {

class OutputFile {
 public:
  // Fails at once if the target cannot be written to, so that nothing is computed for it in vain. All failures are
  // Failure(cannot_write) that start with the path.
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }
  bool replaces_same(const OutputFile& other) const;  // one file, by whatever names
  void write(std::string_view bytes);
  void sync();    // all bytes are on the disk when it returns
  void commit();  // after sync

 private:
  [[noreturn]] void fail_with(const char* step, int error);
  void create_beside_target();
  void discard();

  std::string path_, target_, temporary_;       // target: where links lead, in its folder's own name
  std::optional<std::pair<dev_t, ino_t>> old_;  // the file that is replaced
  int descriptor_ = -1;
  int slot_ = -1;
};

// What files without a commit have written so far. Takes no memory, may be called in a signal handler.
void remove_temporaries() noexcept;

}  // namespace tilewise::cli
