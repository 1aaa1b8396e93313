// --json and --csv.
#pragma once

#include "cli/arguments.h"
#include "cli/table.h"

namespace tilewise::cli {

struct FormatOptions {
  bool json = false, csv = false;

  Format format() const { return json ? Format::json : csv ? Format::csv : Format::text; }
};

inline void declare(Arguments& arguments, FormatOptions& options) {
  arguments.group("Output");
  arguments.flag("--json", options.json, "one list of rows");
  arguments.flag("--csv", options.csv, "a line of names, then one line a row");
  arguments.excludes("--json", "--csv");
}

}  // namespace tilewise::cli
