// tilewise run: files in, files out, and what happens when either is not as it should be.
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "cli/files/npy.h"
#include "cli/files/safetensors.h"
#include "cli_spawn.h"

namespace tilewise::cli {
namespace {

using Shape = std::vector<int64_t>;

Array floats(const Shape& shape, float (*value)(int64_t i)) {
  Array array = Array::of(Type::f32, shape, "test");
  for (int64_t i = 0; i < array.bytes.size() / 4; ++i) array.bytes.as<float>()[i] = value(i);
  return array;
}

float zero(int64_t) { return 0; }
float wave(int64_t i) { return std::sin(static_cast<float>(i) * 0.37f); }
float other_wave(int64_t i) { return std::cos(static_cast<float>(i) * 0.23f); }

class CliRun : public CliTest {
 protected:
  void write(const std::string& name, const NamedArrays& arrays) const {
    OutputFile file((work() / name).string());
    write_safetensors(file, arrays);
    file.sync();
    file.commit();
  }
  void write(const std::string& name, const Array& array) const {
    OutputFile file((work() / name).string());
    write_npy(file, array);
    file.sync();
    file.commit();
  }
  Array read(const std::string& name, const std::string& tensor) const {
    return SafetensorsFile((work() / name).string()).read(tensor);
  }
  Array read(const std::string& name) const { return read_npy((work() / name).string()); }

  // q, k, v, dout of 2 heads over 1, 5 queries, 7 keys.
  void write_layer(const Shape& lead = {1}) const {
    const auto shape = [&](Shape rest) {
      rest.insert(rest.begin(), lead.begin(), lead.end());
      return rest;
    };
    const Array q = floats(shape({5, 2, 8}), wave), k = floats(shape({7, 1, 8}), other_wave);
    const Array v = floats(shape({7, 1, 4}), wave), dout = floats(shape({5, 2, 4}), other_wave);
    write("layer.safetensors", {{"q", &q}, {"k", &k}, {"v", &v}, {"dout", &dout}});
  }
};

bool same(const Array& a, const Array& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::memcmp(a.bytes.data(), b.bytes.data(), static_cast<size_t>(a.bytes.size())) == 0;
}

TEST_F(CliRun, UniformAttentionIsTheMean) {
  const Array q = floats({1, 3, 2, 8}, zero), k = floats({1, 4, 1, 8}, wave),
              v = floats({1, 4, 1, 1}, [](int64_t i) { return static_cast<float>(i); });
  write("in.safetensors", {{"q", &q}, {"k", &k}, {"v", &v}});
  const Finished run = tilewise({"run", "in.safetensors", "--output", "out.safetensors"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(holds(run.out, "wrote out.safetensors: out (1, 3, 2, 1) fp32, lse (1, 2, 3) fp32")) << run.out;
  const Array out = read("out.safetensors", "out"), lse = read("out.safetensors", "lse");
  EXPECT_EQ(out.shape, (Shape{1, 3, 2, 1}));
  EXPECT_EQ(lse.shape, (Shape{1, 2, 3}));
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(out.bytes.as<float>()[i], 1.5f, 1e-6f);
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(lse.bytes.as<float>()[i], std::log(4.0f), 1e-6f);
  EXPECT_EQ(names(), (std::vector<std::string>{"in.safetensors", "out.safetensors"}));
}

TEST_F(CliRun, CausalTopLeftSeesItsOwnKeyFirst) {
  write_layer();
  ASSERT_EQ(tilewise({"run", "layer.safetensors", "--causal", "--top-left", "--output", "o"}).code, 0);
  const Array out = read("o", "out"), v = read("layer.safetensors", "v");
  for (int head = 0; head < 2; ++head) {
    for (int d = 0; d < 4; ++d) EXPECT_FLOAT_EQ(out.bytes.as<float>()[head * 4 + d], v.bytes.as<float>()[d]);
  }
}

TEST_F(CliRun, NpyAndSafetensorsAgree) {
  write_layer();
  for (const char* name : {"q", "k", "v", "dout"}) write(std::string(name) + ".npy", read("layer.safetensors", name));
  ASSERT_EQ(tilewise({"run", "layer.safetensors", "--dout", "dout", "--causal", "--output", "all"}).code, 0);
  const Finished run =
      tilewise({"run",   "--query", "q.npy", "--key",   "k.npy", "--value", "v.npy", "--dout", "dout.npy", "--causal",
                "--out", "out.npy", "--lse", "lse.npy", "--dq",  "dq.npy",  "--dk",  "dk.npy", "--dv",     "dv.npy"});
  EXPECT_EQ(run.code, 0) << run.err;
  for (const std::string name : {"out", "lse", "dq", "dk", "dv"}) {
    EXPECT_TRUE(same(read(name + ".npy"), read("all", name))) << name;
  }
}

TEST_F(CliRun, BatchMayBeLeftOut) {
  write_layer({});
  ASSERT_EQ(tilewise({"run", "layer.safetensors", "--dout", "dout", "--output", "three"}).code, 0);
  write_layer();
  ASSERT_EQ(tilewise({"run", "layer.safetensors", "--dout", "dout", "--output", "four"}).code, 0);
  EXPECT_EQ(read("three", "out").shape, (Shape{5, 2, 4}));
  EXPECT_EQ(read("three", "lse").shape, (Shape{2, 5}));
  EXPECT_EQ(read("three", "dk").shape, (Shape{7, 1, 8}));
  EXPECT_EQ(std::memcmp(read("three", "dq").bytes.data(), read("four", "dq").bytes.data(), 5 * 2 * 8 * 4), 0);
}

TEST_F(CliRun, LayoutsAreViewsOfTheSame) {
  // With one head the two layouts are the same memory.
  const Array bshd = floats({1, 6, 1, 8}, wave), bhsd = floats({1, 1, 6, 8}, wave);
  write("bshd", {{"x", &bshd}});
  write("bhsd", {{"x", &bhsd}});
  const std::vector<std::string> names = {"--query", "x", "--key", "x", "--value", "x", "--causal"};
  for (const std::string layout : {"bshd", "bhsd"}) {
    std::vector<std::string> args = {"run", layout, "--layout", layout, "--output", "out_" + layout};
    args.insert(args.end(), names.begin(), names.end());
    ASSERT_EQ(tilewise(args).code, 0);
  }
  const Array a = read("out_bshd", "out"), b = read("out_bhsd", "out");
  EXPECT_EQ(b.shape, (Shape{1, 1, 6, 8}));
  EXPECT_EQ(std::memcmp(a.bytes.data(), b.bytes.data(), 6 * 8 * 4), 0);
}

TEST_F(CliRun, KernelsAndTypesCanBeChosen) {
  const std::string real = (fs::path(TILEWISE_SOURCE) / "data" / "smollm2_layer.safetensors").string();
  const Finished run = tilewise({"run", real, "--causal", "--out-dtype", "fp32", "--out", "out.npy", "--kernel",
                                 "tiled", "--window-left", "63", "--threads", "1", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto row = run.json().at(0);
  EXPECT_TRUE(holds(row["kernel"].get<std::string>(), "tiled"));
  EXPECT_EQ(row["dtype"], "bf16");
  EXPECT_EQ(row["seqlen_q"], 2048);
  EXPECT_EQ(row["threads"], 1);
  EXPECT_EQ(read("out.npy").dtype, Type::f32);
}

TEST_F(CliRun, ScoreOptionsAct) {
  write_layer();
  const Array bias = floats({5, 7}, wave), slopes = floats({2}, wave), sink = floats({2}, other_wave);
  write("extra", {{"q", &bias}});
  write("bias.npy", bias);
  write("slopes.npy", slopes);
  write("sink.npy", sink);
  const std::vector<std::vector<std::string>> options = {{},
                                                         {"--scale", "-0.5"},
                                                         {"--softcap", "2"},
                                                         {"--window-right", "1"},
                                                         {"--chunk", "3"},
                                                         {"--bias", "bias.npy"},
                                                         {"--alibi-slopes", "slopes.npy"},
                                                         {"--sink", "sink.npy"},
                                                         {"--dropout", "0.5"},
                                                         {"--dropout", "0.5", "--dropout-seed", "9"},
                                                         {"--causal"},
                                                         {"--causal", "--top-left"},
                                                         {"--window-left", "2"}};
  std::map<std::string, size_t> seen;
  for (size_t i = 0; i < options.size(); ++i) {
    std::vector<std::string> args = {"run", "layer.safetensors", "--output", "o"};
    args.insert(args.end(), options[i].begin(), options[i].end());
    const Finished run = tilewise(args);
    ASSERT_EQ(run.code, 0) << run.err;
    const Array out = read("o", "out");
    const std::string bytes(out.bytes.data(), static_cast<size_t>(out.bytes.size()));
    EXPECT_TRUE(seen.emplace(bytes, i).second) << "option set " << i << " acts like " << seen[bytes];
  }
}

TEST_F(CliRun, BadInputsAreNamed) {
  write_layer();
  const std::string layer = get("layer.safetensors");
  put("cut", layer.substr(0, layer.size() - 1));
  put("short", layer.substr(0, 5));
  put("npy", "\x93NUMPY and so on");
  put("text", "once upon a time there was a tensor");
  const Array flat = floats({40}, wave);
  write("flat.npy", flat);
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* rule;
  };
  const Case cases[] = {
      {{"gone"}, 3, "gone: cannot open: No such file"},
      {{"."}, 3, ".: not a regular file"},
      {{"cut"}, 3, "cut: truncated"},
      {{"short"}, 3, "short: truncated"},
      {{"text"},
       3,
       "text: not a safetensors file: its first 8 bytes are not the length of a header (the format allows"},
      {{"npy"}, 3, "npy: an .npy file, not a safetensors file; `tilewise run` takes it with --query"},
      {{"layer.safetensors", "--query", "z"}, 3, "no tensor 'z'; it has 'dout', 'k', 'q', 'v'"},
      {{"layer.safetensors", "--query", "gone.npy"}, 3, "gone.npy: cannot open"},
      {{"layer.safetensors", "--query", "flat.npy"}, 3, "flat.npy: shape (40) has 1 axes"},
      {{"layer.safetensors", "--key", "q"}, 2, "k"},
      {{"layer.safetensors", "--value", "dout"}, 2, "v"},
      {{"layer.safetensors", "--scale", "nan"}, 2, "softmax_scale"},
      {{"layer.safetensors", "--kernel", "nothing"}, 2, "nothing"},
      {{"layer.safetensors", "--dq", "dq.npy"}, 2, "--dq: gradients need --dout"},
      {{"layer.safetensors", "--out", "out.txt"}, 2, "--out: 'out.txt' does not end in .npy"},
  };
  const std::vector<std::string> before = names();
  for (const Case& c : cases) {
    std::vector<std::string> args = {"run", "--output", "o"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const Finished run = tilewise(args);
    EXPECT_EQ(run.code, c.code) << c.rule << "\n" << run.err;
    EXPECT_TRUE(holds(run.err, c.rule)) << c.rule << "\n" << run.err;
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(names(), before) << c.rule;
  }
}

TEST_F(CliRun, OutputsAreCheckedFirst) {
  write_layer();
  const Finished none = tilewise({"run", "layer.safetensors"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(holds(none.err, "no output"));
  const Finished twice = tilewise({"run", "layer.safetensors", "--out", "o.npy", "--lse", "o.npy"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_TRUE(holds(twice.err, "o.npy: two outputs"));
  const Finished nowhere = tilewise({"run", "layer.safetensors", "--output", "no/such/o"});
  EXPECT_EQ(nowhere.code, 4);
  EXPECT_TRUE(holds(nowhere.err, "no/such/o: cannot create"));
  const Finished npy = tilewise({"run", "layer.safetensors", "--output", "z.npy"});
  EXPECT_EQ(npy.code, 2);
  EXPECT_TRUE(holds(npy.err, "--output: 'z.npy' does not end in .safetensors (for .npy: --out")) << npy.err;
  EXPECT_EQ(tilewise({"run", "layer.safetensors", "--output", "."}).code, 4);
  EXPECT_EQ(tilewise({"run", "layer.safetensors", "--output", "/dev/null"}).code, 4);
  EXPECT_EQ(names(), std::vector<std::string>{"layer.safetensors"});
}

TEST_F(CliRun, AFullDiskLeavesEverythingAsItWas) {
  const Array q = floats({1, 64, 2, 64}, wave);
  write("in", {{"q", &q}, {"k", &q}, {"v", &q}});
  put("out", "precious");
  put("lse.npy", "also");
  constexpr rlim_t kTooSmall = 4096;
  const Finished one = tilewise({"run", "in", "--output", "out"}, {.largest_file = kTooSmall});
  EXPECT_EQ(one.code, 4) << one.err;
  EXPECT_TRUE(holds(one.err, "out: cannot write: File too large")) << one.err;
  // The first file would fit, the second does not: neither appears.
  const Finished two = tilewise({"run", "in", "--lse", "lse.npy", "--out", "out.npy"}, {.largest_file = kTooSmall});
  EXPECT_EQ(two.code, 4) << two.err;
  EXPECT_EQ(get("out"), "precious");
  EXPECT_EQ(get("lse.npy"), "also");
  EXPECT_EQ(names(), (std::vector<std::string>{"in", "lse.npy", "out"}));
}

// ASan makes reports of a few signals, and then ends the process itself.
bool keeps_its_meaning([[maybe_unused]] int signal) {
#ifdef __SANITIZE_ADDRESS__
  return signal != SIGBUS && signal != SIGFPE && signal != SIGSEGV;
#else
  return true;
#endif
}

TEST_F(CliRun, NoSignalLeavesAnything) {
  const Array q = floats({1, 4096, 4, 64}, wave);
  write("in", {{"q", &q}, {"k", &q}, {"v", &q}});
  for (const int signal :
       {SIGINT,    SIGTERM, SIGHUP,  SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU, SIGVTALRM, SIGPROF,  SIGPOLL, SIGPWR,
        SIGSTKFLT, SIGSYS,  SIGTRAP, SIGABRT, SIGBUS,  SIGFPE,  SIGSEGV, SIGILL,  SIGPIPE,   SIGRTMIN, SIGRTMAX}) {
    if (!keeps_its_meaning(signal)) continue;
    const pid_t child = start({"run", "in", "--output", "out", "--kernel", "reference", "--threads", "1"});
    for (int i = 0; i < 2000 && names().size() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(names().size(), 2u);  // the input and the temporary
    kill(child, signal);
    EXPECT_EQ(wait_for(child).signal, signal);
    EXPECT_EQ(names(), std::vector<std::string>{"in"}) << "signal " << signal;
    fs::remove(work() / "in");
    write("in", {{"q", &q}, {"k", &q}, {"v", &q}});
  }
}

TEST_F(CliRun, AFileIsOneFileByAnyName) {
  write_layer();
  put("old.npy", "precious");
  fs::create_directory(work() / "folder");
  fs::create_symlink("old.npy", work() / "link.npy");
  fs::create_symlink("new.npy", work() / "dangling.npy");
  fs::create_directory_symlink(".", work() / "here");
  fs::create_hard_link(work() / "old.npy", work() / "hard.npy");
  const std::string absolute = (work() / "new.npy").string();
  const std::vector<std::string> before = names();
  const std::pair<std::string, std::string> cases[] = {
      {"new.npy", "./new.npy"},         {"new.npy", absolute},         {"new.npy", "folder/../new.npy"},
      {"new.npy", "here/here/new.npy"}, {"new.npy", "dangling.npy"},   {"old.npy", "link.npy"},
      {"old.npy", "hard.npy"},          {"link.npy", "here/link.npy"}, {"dangling.npy", "here/dangling.npy"},
  };
  for (const auto& [out, lse] : cases) {
    const Finished run = tilewise({"run", "layer.safetensors", "--out", out, "--lse", lse});
    EXPECT_EQ(run.code, 2) << out << " " << lse;
    EXPECT_TRUE(holds(run.err, lse + ": two outputs")) << run.err;
    EXPECT_EQ(names(), before) << out << " " << lse;
    EXPECT_EQ(get("old.npy"), "precious");
  }
}

TEST_F(CliRun, ALinkStaysALink) {
  write_layer();
  fs::create_directory(work() / "folder");
  fs::create_symlink("folder/new", work() / "link");
  fs::create_symlink("link", work() / "second");
  EXPECT_EQ(tilewise({"run", "layer.safetensors", "--output", "second"}).code, 0);
  EXPECT_TRUE(fs::is_symlink(work() / "second"));
  EXPECT_TRUE(fs::is_symlink(work() / "link"));
  EXPECT_EQ(read("folder/new", "out").shape, (Shape{1, 5, 2, 4}));
  fs::create_symlink("loop", work() / "loop");
  const Finished loop = tilewise({"run", "layer.safetensors", "--output", "loop"});
  EXPECT_EQ(loop.code, 4);
  EXPECT_TRUE(holds(loop.err, "loop: cannot open: Too many levels")) << loop.err;
  EXPECT_TRUE(fs::is_symlink(work() / "loop"));
}

#ifdef TILEWISE_FAILING_MALLOC
// The Nth allocation of the process fails, for many N, alone and with all after it.
TEST_F(CliRun, OutOfMemoryAnywhereIsToldAndLeavesNothing) {
  write_layer();
  const std::vector<std::string> before = names();
  for (const std::string variable : {"FAIL_AT", "FAIL_FROM"}) {
    int refused = 0;
    for (int n = 2, survived = 0; survived < 30; n += 11) {
      const Surroundings around = {
          .environment = {{"LD_PRELOAD", TILEWISE_FAILING_MALLOC}, {variable, std::to_string(n)}}};
      const Finished run = tilewise({"run", "layer.safetensors", "--dout", "dout", "--output", "o"}, around);
      if (run.code == 0) {
        ++survived;
        fs::remove(work() / "o");
        continue;
      }
      ++refused, survived = 0;
      EXPECT_EQ(run.code, 6) << variable << " " << n << " signal " << run.signal << "\n" << run.err;
      EXPECT_TRUE(holds(run.err, "out of memory")) << variable << " " << n << "\n" << run.err;
      ASSERT_EQ(names(), before) << variable << " " << n;
    }
    EXPECT_GT(refused, 20);
  }
}
#endif

TEST_F(CliRun, TheInputMayBeReplaced) {
  write_layer();
  EXPECT_EQ(tilewise({"run", "layer.safetensors", "--output", "layer.safetensors"}).code, 0);
  EXPECT_EQ(read("layer.safetensors", "out").shape, (Shape{1, 5, 2, 4}));
}

}  // namespace
}  // namespace tilewise::cli
