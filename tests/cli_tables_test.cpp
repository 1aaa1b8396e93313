// The commands that print tables: that they run, and that their JSON and CSV keep their keys.
#include "cli_spawn.h"
#include "traffic/traffic.h"

namespace tilewise::cli {
namespace {

using Json = nlohmann::ordered_json;
using Keys = std::vector<std::string>;

class CliTables : public CliTest {
 protected:
  // One list of rows, each with exactly these keys in this order.
  Json rows(const std::vector<std::string>& args, const Keys& keys) const {
    const Finished run = tilewise(args);
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    Json list = run.json();
    EXPECT_TRUE(list.is_array());
    EXPECT_FALSE(list.empty());
    for (const Json& row : list) {
      Keys found;
      for (const auto& [key, value] : row.items()) found.push_back(key);
      EXPECT_EQ(found, keys);
    }
    return list;
  }
};

const Keys kMeasured = {"kernel",
                        "pass",
                        "dtype",
                        "layout",
                        "batch",
                        "heads",
                        "kv_heads",
                        "seqlen_q",
                        "seqlen_k",
                        "head_dim",
                        "head_dim_v",
                        "causal",
                        "threads",
                        "ms_median",
                        "ms_min",
                        "ms_p10",
                        "ms_p90",
                        "gflops",
                        "percent_of_peak",
                        "bytes_model",
                        "bytes_counted",
                        "workspace_bytes",
                        "peak_bytes",
                        "max_error",
                        "runs",
                        "device_bytes_model"};

TEST_F(CliTables, BenchKeepsItsKeys) {
  const Json list = rows({"bench", "--kernel", "tiled,standard,v1", "--pass", "forward,backward", "--seqlen", "96",
                          "--ms", "5", "--heads", "6", "--kv-heads", "2", "--causal", "--check", "--json"},
                         kMeasured);
  ASSERT_EQ(list.size(), 6u);
  for (const Json& row : list) {
    EXPECT_EQ(row["heads"], 6);
    EXPECT_EQ(row["kv_heads"], 2);
    EXPECT_EQ(row["causal"], true);
    EXPECT_GT(row["ms_median"], 0);
    EXPECT_LE(row["ms_min"], row["ms_median"]);
    EXPECT_GT(row["gflops"], 0);
    EXPECT_GT(row["percent_of_peak"], 0);
    EXPECT_GT(row["bytes_model"], 0);
    EXPECT_TRUE(row["max_error"].is_number());
    EXPECT_LT(row["max_error"], 1e-5);
    EXPECT_GE(row["runs"], 3);
  }
  EXPECT_TRUE(holds(list[0]["kernel"].get<std::string>(), "tiled"));
  EXPECT_TRUE(holds(list[1]["kernel"].get<std::string>(), "standard"));
  EXPECT_TRUE(holds(list[2]["kernel"].get<std::string>(), "v1"));
  EXPECT_EQ(list[0]["pass"], "forward");
  EXPECT_EQ(list[5]["pass"], "backward");
}

// This program is linked with the same library as the command.
TEST_F(CliTables, BytesAreCountedInTheCountingBuildOnly) {
  for (const Json& row : rows({"bench", "--kernel", "tiled,standard,v1", "--pass", "forward,backward", "--seqlen", "96",
                               "--ms", "1", "--json"},
                              kMeasured)) {
    const bool counted = counts_traffic() && !holds(row["kernel"].get<std::string>(), "tiled");
    EXPECT_EQ(row["bytes_counted"], counted ? row["bytes_model"] : Json()) << row;
  }
}

TEST_F(CliTables, BenchTakesEveryCombination) {
  const Json list = rows(
      {"bench",      "--dtype", "fp32,fp16,bf16", "--layout", "bshd,bhsd", "--seqlen-q", "1,70", "--seqlen-k", "33",
       "--head-dim", "24",      "--head-dim-v",   "8",        "--threads", "1,2",        "--ms", "1",          "--runs",
       "1",          "--json"},
      kMeasured);
  EXPECT_EQ(list.size(), 3u * 2 * 2 * 2);
}

TEST_F(CliTables, BenchPrintsCsv) {
  const Finished run = tilewise({"bench", "--seqlen", "64", "--ms", "1", "--csv"});
  EXPECT_EQ(run.code, 0);
  std::string header;
  for (const std::string& key : kMeasured) header += (header.empty() ? "" : ",") + key;
  EXPECT_EQ(run.out.substr(0, run.out.find('\n')), header);
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 2);
}

TEST_F(CliTables, BenchGoesOnAfterARefusal) {
  const Finished run =
      tilewise({"bench", "--kernel", "tiled", "--head-dim", "600,64", "--seqlen", "32", "--ms", "1", "--json"});
  EXPECT_EQ(run.code, 5);
  EXPECT_TRUE(holds(run.err, "head_dim 600")) << run.err;
  EXPECT_EQ(run.json().size(), 1u);
}

TEST_F(CliTables, TextIsAlignedAndFits) {
  const Finished run = tilewise({"bench", "--seqlen", "64,128", "--ms", "1"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(holds(run.out, "dtype fp32"));
  EXPECT_TRUE(holds(run.out, "kernel"));
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
}

TEST_F(CliTables, ExplainTellsWhoServesAndWhoDoesNot) {
  const Keys keys = {"kernel", "decision", "workers", "query_rows", "keys", "chunk_keys", "workspace_bytes", "reason"};
  int chosen = 0;
  for (const Json& row : rows({"explain", "--causal", "--json"}, keys)) {
    const bool tiled = holds(row["kernel"].get<std::string>(), "tiled");
    EXPECT_EQ(row["decision"] == "chosen", tiled && chosen == 0);
    chosen += row["decision"] == "chosen";
    EXPECT_EQ(row["decision"] == "when named", !row["reason"].get<std::string>().empty()) << row;
  }
  EXPECT_EQ(chosen, 1);
  for (const Json& row : rows({"explain", "--kernel", "v1", "--pass", "backward", "--json"}, keys)) {
    const bool named = holds(row["kernel"].get<std::string>(), "v1");
    EXPECT_TRUE(named || row["decision"] != "chosen") << row;
  }
  const Finished forced = tilewise({"explain", "--json"}, {.environment = {{"TILEWISE_FORCE_KERNEL", "reference"}}});
  for (const Json& row : Json::parse(forced.out)) {
    EXPECT_EQ(row["decision"] == "chosen", holds(row["kernel"].get<std::string>(), "reference")) << row;
  }
}

TEST_F(CliTables, InfoListsKernels) {
  const Json list = rows({"info", "--json"}, {"kernel", "pass", "rank", "available", "why_not", "refuses", "device",
                                              "isa", "cores", "l1_bytes", "l2_bytes", "l3_bytes"});
  bool reference = false;
  for (const Json& row : list) reference = reference || row["kernel"] == "cpu.reference.forward";
  EXPECT_TRUE(reference);
  const Finished text = tilewise({"info"});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(holds(text.out, "caches"));
  EXPECT_TRUE(holds(text.out, "the first that accepts a problem serves it"));
}

TEST_F(CliTables, TrafficShowsTheAsymptotics) {
  const Keys keys = {"algorithm",   "pass",           "dtype",    "batch",       "heads",
                     "kv_heads",    "seqlen_q",       "seqlen_k", "head_dim",    "head_dim_v",
                     "causal",      "fast_memory",    "flops",    "bytes_read",  "bytes_written",
                     "bytes_model", "flops_per_byte", "growth",   "device_bytes"};
  const Json list = rows({"traffic", "--seqlen", "4096,8192", "--fast-memory", "16384,32768", "--json"}, keys);
  ASSERT_EQ(list.size(), 2u * 2 * 3);
  const auto bytes = [&](const char* algorithm, int64_t seqlen, int64_t fast_memory) {
    for (const Json& row : list) {
      if (row["algorithm"] == algorithm && row["seqlen_q"] == seqlen && row["fast_memory"] == fast_memory) {
        return row["bytes_model"].get<double>();
      }
    }
    return 0.0;
  };
  for (const char* algorithm : {"standard", "v1", "v2"}) {
    EXPECT_NEAR(bytes(algorithm, 8192, 16384) / bytes(algorithm, 4096, 16384), 4, 0.5) << algorithm;
  }
  EXPECT_NEAR(bytes("v1", 8192, 16384) / bytes("v1", 8192, 32768), 2, 0.3);  // 1 / M
  EXPECT_GT(bytes("standard", 8192, 32768), bytes("v1", 8192, 32768));
  EXPECT_GT(bytes("v1", 8192, 32768), bytes("v2", 8192, 32768));
}

TEST_F(CliTables, TrafficHasNoNumbersForWhatIsTooLarge) {
  for (const char* seqlen : {"100000000", "1000000000"}) {
    const Finished json = tilewise({"traffic", "--seqlen", seqlen, "--json"});
    ASSERT_EQ(json.code, 0) << json.err;
    for (const Json& row : Json::parse(json.out))
      for (const char* key : {"flops", "bytes_read", "bytes_written", "bytes_model", "flops_per_byte"})
        EXPECT_TRUE(row[key].is_null()) << key;
    EXPECT_FALSE(holds(tilewise({"traffic", "--seqlen", seqlen}).out, "-8"));
  }
}

TEST_F(CliTables, VerifyChecksRandomProblems) {
  const Keys keys = {"output", "worst_ratio", "index", "problem", "kernel",
                     "seed",   "drawn",       "run",   "refused", "failed"};
  for (const Json& row : rows({"verify", "--count", "20", "--seed", "3", "--json"}, keys)) {
    EXPECT_EQ(row["run"], 20);
    EXPECT_EQ(row["failed"], 0);
    EXPECT_LE(row["worst_ratio"], 1);
  }
  const Finished text = tilewise({"verify", "--kernel", "tiled", "--count", "5", "--first", "7"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(holds(text.out, "5 run, 0 wrong")) << text.out;
}

TEST_F(CliTables, DemoShowsThreeAlgorithmsAtWork) {
  const Finished text = tilewise({"demo", "--tokens", "512"});
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part : {"SmolLM2", "standard", "FlashAttention-1", "tiled", "What this shows", "Exact", "Memory",
                           "Bytes", "Time", "Backward"}) {
    EXPECT_TRUE(holds(text.out, part)) << part << "\n" << text.out;
  }
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST_F(CliTables, DemoPrintsItsRows) {
  const Json list = rows({"demo", "--tokens", "512", "--json"}, kMeasured);
  EXPECT_EQ(list.size(), 6u);
  for (const Json& row : list) EXPECT_LT(row["max_error"], 1e-5);
}

TEST_F(CliTables, DemoSaysWhatIsWrongWithItsData) {
  EXPECT_EQ(tilewise({"demo", "--data", "gone.safetensors"}).code, 3);
  put("bad.safetensors", "bad");
  const Finished bad = tilewise({"demo", "--data", "bad.safetensors"});
  EXPECT_EQ(bad.code, 3);
  EXPECT_TRUE(holds(bad.err, "bad.safetensors: truncated")) << bad.err;
}

}  // namespace
}  // namespace tilewise::cli
