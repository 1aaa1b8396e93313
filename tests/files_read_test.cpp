// The command's file readers: what they accept, and that nothing in a file can hurt.
#include <sys/stat.h>

#include "files_fixture.h"

namespace tilewise::cli {
namespace {

// ---- safetensors

constexpr const char* kTwoTensors =
    R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
    R"("y":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";

TEST_F(Files, SafetensorsAreRead) {
  const SafetensorsFile file(put("a", safetensors_bytes(kTwoTensors, "01234567ab")));
  ASSERT_EQ(file.header().size(), 2u);
  const Array x = file.read("x");
  EXPECT_EQ(x.dtype, Type::f32);
  EXPECT_EQ(x.shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(std::string(x.bytes.data(), 8), "01234567");
  const Array y = file.read("y");
  EXPECT_EQ(y.dtype, Type::bf16);
  EXPECT_EQ(std::string(y.bytes.data(), 2), "ab");
}

TEST_F(Files, SafetensorsSurviveTheRoundTrip) {
  const Array half = numbers(Type::f16, {3, 1}), single = numbers(Type::f32, {2, 0, 4}), wide = numbers(Type::f32, {5});
  OutputFile out(path("a"));
  write_safetensors(out, {{"half", &half}, {"none \"quoted\"", &single}, {"wide", &wide}});
  out.sync();
  out.commit();
  const SafetensorsFile file(path("a"));
  expect_same(file.read("half"), half);
  expect_same(file.read("none \"quoted\""), single);
  expect_same(file.read("wide"), wide);
}

TEST_F(Files, SafetensorsCutAnywhereAreRefused) {
  const std::string whole = safetensors_bytes(kTwoTensors, "01234567ab");
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const std::string name = put("a", whole.substr(0, cut));
    EXPECT_NE(failure_of([&] { SafetensorsFile file(name); }), "no failure") << "cut at byte " << cut;
  }
}

TEST_F(Files, SafetensorsWithOneWrongByteNeverCrash) {
  const std::string whole = safetensors_bytes(kTwoTensors, "01234567ab");
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char c : {'\0', '"', '{', '[', '9', '-', '\xff'}) {
      std::string bytes = whole;
      bytes[at] = c;
      const std::string name = put("a", bytes);
      failure_of([&] {
        const SafetensorsFile file(name);
        for (const auto& [tensor, entry] : file.header()) file.read(tensor);
      });
    }
  }
}

TEST_F(Files, HostileSafetensorsHeadersAreRefused) {
  const auto entry = [](const std::string& body) { return R"({"x":{)" + body + "}}"; };
  const std::pair<std::string, const char*> cases[] = {
      {"", "JSON"},
      {"[]", "an array, not an object"},
      {"7", "a number, not an object"},
      {R"({"x":7})", "a number, not an object"},
      {R"({"x":{"dtype":"F32"}})", "are needed"},
      {R"({"__metadata__":{"a":1}})", "a number, not a string"},
      {R"({"__metadata__":{"a":{}}})", "an object, not a string"},
      {R"({"__metadata__":{},"__metadata__":{}})", "twice"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"dtype":"F32")"), "field dtype twice"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"stride":[1])"), "unknown field 'stride'"},
      {entry(R"("dtype":3,"shape":[2],"data_offsets":[0,8])"), "a number in dtype"},
      {entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "integers from 0"},
      {entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "integers from 0"},
      {entry(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])"), "integers from 0"},
      {entry(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"), "integers from 0"},
      {entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), "does not take 8 bytes"},
      {entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "does not take 8 bytes"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "holds 1 numbers"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "ends before it begins"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), "truncated"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "4 bytes after the last tensor"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "a hole of 4 bytes"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "overlaps"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "twice"},
  };
  for (const auto& [header, rule] : cases) {
    const std::string name = put("a", safetensors_bytes(header, "01234567"));
    const std::string message = failure_of([&] { SafetensorsFile file(name); });
    EXPECT_NE(message.find(rule), std::string::npos) << header << "\n -> " << message;
    EXPECT_EQ(message.find(name), 0u) << message;
  }
}

// JSON without them is accepted: the bytes alone are at fault.
TEST_F(Files, SafetensorsHeadersAreJsonToTheirLastByte) {
  const std::string good = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const auto header = [&](const std::string& before, const std::string& after) {
    const std::string name = put("a", safetensors_bytes(before + good + after, "01234567"));
    return failure_of([&] { SafetensorsFile file(name); });
  };
  EXPECT_EQ(
      failure_of([&] { SafetensorsFile file(put("a", safetensors_bytes(good + "   \n", "01234567"))); }, ExitCode::ok),
      "no failure");
  const std::string nul(1, '\0');
  for (const std::string& after : {nul, nul + " garbage {{{", " " + nul, std::string("{}"), std::string("x"),
                                   std::string("// no"), std::string("\x1a")}) {
    EXPECT_NE(header("", after).find("not valid JSON"), std::string::npos) << after;
  }
  EXPECT_NE(header("\xef\xbb\xbf", "").find("byte order mark"), std::string::npos);
  EXPECT_NE(header("\xff\xfe", "").find("not valid JSON"), std::string::npos);
  EXPECT_NE(header(nul, "").find("not valid JSON"), std::string::npos);
}

TEST_F(Files, SafetensorsHeaderLengthsAreChecked) {
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  EXPECT_NE(failure_of([&] { SafetensorsFile file(put("a", huge + "{}")); }).find("the format allows"),
            std::string::npos);
  const std::string long_header = std::string("\x01\xe1\xf5\x05\0\0\0\0", 8);  // 100,000,001
  EXPECT_NE(failure_of([&] { SafetensorsFile file(put("a", long_header + "{}")); }).find("the format allows"),
            std::string::npos);
  EXPECT_NE(failure_of([&] {
              SafetensorsFile file(put("a", std::string("\x40\0\0\0\0\0\0\0", 8) + "{}"));
            }).find("does not fit"),
            std::string::npos);
}

TEST_F(Files, DeepNestingIsRefusedAtOnce) {
  std::string braces;
  for (int i = 0; i < 1'000'000; ++i) braces += R"({"a":)";
  for (const std::string& header : {braces, std::string(1'000'000, '['), R"({"x":)" + std::string(1'000'000, '[')}) {
    const std::string name = put("a", safetensors_bytes(header, ""));
    EXPECT_NE(failure_of([&] { SafetensorsFile file(name); }), "no failure");
  }
}

TEST_F(Files, TensorsOfOtherTypesAreNamed) {
  const SafetensorsFile file(
      put("a", safetensors_bytes(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "01234567")));
  EXPECT_NE(failure_of([&] { file.read("ids"); }).find("type 'I64' is not one of F32, F16, BF16"), std::string::npos);
  EXPECT_NE(failure_of([&] { file.read("q"); }).find("no tensor 'q'; it has 'ids'"), std::string::npos);
}

TEST_F(Files, NamesFromFilesCannotSteerTheTerminal) {
  const std::string name = put("a", safetensors_bytes(R"({"\u001b[2J":7})", ""));
  const std::string message = failure_of([&] { SafetensorsFile file(name); });
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_NE(message.find("\\x1b[2J"), std::string::npos) << message;
}

// ---- npy

constexpr const char* kPair = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }\n";

TEST_F(Files, NpyOfEveryVersionIsRead) {
  for (const int version : {1, 2, 3}) {
    const Array array = read_npy(put("a", npy_bytes(kPair, "01234567", version)));
    EXPECT_EQ(array.dtype, Type::f32);
    EXPECT_EQ(array.shape, (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(std::string(array.bytes.data(), 8), "01234567");
  }
}

TEST_F(Files, NpyHeadersMayBeSpelledFreely) {
  const NpyHeader header = parse_npy_header(R"({"shape":(3L,),"fortran_order":False , "descr":"<f2"}   )");
  EXPECT_EQ(header.descr, "<f2");
  EXPECT_EQ(header.shape, (std::vector<int64_t>{3}));
}

TEST_F(Files, NpySurvivesTheRoundTrip) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {3}, {0, 4}, {2, 3, 1, 2}}) {
    for (const Type type : {Type::f32, Type::f16}) {
      const Array array = numbers(type, shape);
      OutputFile out(path("a"));
      write_npy(out, array);
      out.sync();
      out.commit();
      expect_same(read_npy(path("a")), array);
      EXPECT_EQ((get("a").size() - static_cast<size_t>(array.bytes.size())) % 64, 0u);
    }
  }
}

TEST_F(Files, NpyHasNoBf16) {
  const Array array = numbers(Type::bf16, {2});
  OutputFile out(path("a"));
  EXPECT_NE(failure_of([&] { write_npy(out, array); }, ExitCode::usage).find("npy has no bf16"), std::string::npos);
}

TEST_F(Files, NpyCutAnywhereIsRefused) {
  for (const int version : {1, 2, 3}) {
    const std::string whole = npy_bytes(kPair, "01234567", version);
    for (size_t cut = 0; cut < whole.size(); ++cut) {
      const std::string name = put("a", whole.substr(0, cut));
      EXPECT_NE(failure_of([&] { read_npy(name); }), "no failure") << "version " << version << " cut at byte " << cut;
    }
  }
}

TEST_F(Files, NpyWithOneWrongByteNeverCrashes) {
  const std::string whole = npy_bytes(kPair, "01234567");
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char c : {'\0', '\'', '{', '(', '9', '-', '\xff'}) {
      std::string bytes = whole;
      bytes[at] = c;
      const std::string name = put("a", bytes);
      failure_of([&] { read_npy(name); });
    }
  }
}

TEST_F(Files, NpyOfOtherKindsIsRefusedByName) {
  const auto with = [](const std::string& descr, const std::string& order, const std::string& shape) {
    return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  };
  const std::pair<std::string, const char*> cases[] = {
      {with("'>f4'", "False", "(2,)"), "big-endian"},
      {with("'|O'", "False", "(2,)"), "object arrays"},
      {with("'<V2'", "False", "(4,)"), "npy has no bf16"},
      {with("'<f8'", "False", "(1,)"), "'<f8' is not one of"},
      {with("[('a', '<f4')]", "False", "(2,)"), "structured"},
      {with("'<f4'", "True", "(2,)"), "Fortran order"},
      {with("'<f4'", "maybe", "(2,)"), "malformed"},
      {with("'<f4'", "False", "(-2,)"), "negative"},
      {with("'<f4'", "False", "(99999999999999999999,)"), "overflows"},
      {with("'<f4'", "False", "(4294967296, 4294967296)"), "overflows"},
      {with("'<f4'", "False", "(0, 4611686018427387904, 4611686018427387904)"), "overflows"},
      {with("'<f4'", "False", "(3,)"), "truncated"},
      {with("'<f4'", "False", "(1,)"), "4 bytes after the array"},
      {with("'<f4'", "False", "2"), "malformed"},
      {"{'descr': '<f4', 'shape': (2,), }", "header needs"},
      {"{'descr': '<f4', 'descr': '<f4'}", "twice"},
      {"{'descr': '<f4', 'order': '<f4'}", "unknown header key 'order'"},
      {"", "malformed header at its end"},
  };
  for (const auto& [header, rule] : cases) {
    const std::string name = put("a", npy_bytes(header, "01234567"));
    const std::string message = failure_of([&] { read_npy(name); });
    EXPECT_NE(message.find(rule), std::string::npos) << header << "\n -> " << message;
  }
  EXPECT_NE(failure_of([&] { read_npy(put("a", npy_bytes(kPair, "01234567", 4))); }).find("version 4.0"),
            std::string::npos);
  EXPECT_NE(failure_of([&] { read_npy(put("a", std::string(64, 'x'))); }).find("not an npy file"), std::string::npos);
}

// ---- What is no file

TEST_F(Files, FoldersPipesAndMissingFilesAreRefused) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(failure_of([&] { read_npy(path("pipe")); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(failure_of([&] { read_npy(folder_.string()); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(failure_of([&] { read_npy(path("gone")); }).find("cannot open: No such file"), std::string::npos);
}

}  // namespace
}  // namespace tilewise::cli
