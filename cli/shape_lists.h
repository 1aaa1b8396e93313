// Lists of sizes on the command line: every combination is a shape.
#pragma once

#include <string>
#include <vector>

#include "cli/shape.h"

namespace tilewise::cli {

struct ShapeLists {
  std::vector<std::string> passes = {"forward"}, dtypes = {"fp32"}, layouts = {"bshd"};
  std::vector<int64_t> batch = {1}, heads = {4}, kv_heads, seqlen = {2048}, seqlen_q, seqlen_k;
  std::vector<int64_t> head_dim = {64}, head_dim_v, threads = {0};
  std::string device = "cpu";
};
void declare(Arguments& arguments, ShapeLists& lists);
std::vector<Shape> shapes_of(const ShapeLists& o);

}  // namespace tilewise::cli
