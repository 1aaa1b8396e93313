// What the tests of the command's files share: a folder of their own, and files made by hand.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/failure.h"
#include "cli/files/npy.h"
#include "cli/files/safetensors.h"

namespace tilewise::cli {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tilewise_files_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string put(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string get(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

  fs::path folder_;
};

template <typename Function>
std::string failure_of(Function function, ExitCode code = ExitCode::bad_input) {
  try {
    function();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code, code) << failure.what();
    return failure.what();
  }
  return "no failure";
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> 8 * i & 0xff);
  return bytes + header + data;
}

inline std::string npy_bytes(const std::string& header, const std::string& data, int version = 1) {
  std::string bytes = std::string("\x93NUMPY") + static_cast<char>(version) + '\0';
  for (size_t i = 0; i < (version == 1 ? 2u : 4u); ++i) bytes += static_cast<char>(header.size() >> 8 * i & 0xff);
  return bytes + header + data;
}

inline Array numbers(Type type, std::vector<int64_t> shape) {
  Array array = Array::of(type, std::move(shape), "test");
  for (int64_t i = 0; i < array.bytes.size(); ++i) array.bytes.data()[i] = static_cast<char>(i * 7 + 1);
  return array;
}

inline void expect_same(const Array& a, const Array& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  ASSERT_EQ(a.bytes.size(), b.bytes.size());
  EXPECT_TRUE(a.bytes.size() == 0 || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0);
}

}  // namespace tilewise::cli
