// Small text files of the kernel, /proc and /sys, read without allocating.
#pragma once

namespace tilewise {

struct SmallFile {
  char text[4096] = {};  // the start of the file; empty if it cannot be read

  explicit SmallFile(const char* path);

  // The number after `label` and anything that is not part of a number; `otherwise` if there is none.
  double number_after(const char* label, double otherwise) const;
};

// The number that `text` starts with, whatever the locale; `otherwise` if it starts with none.
double leading_number(const char* text, double otherwise);

}  // namespace tilewise
