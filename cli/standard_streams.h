// Standard output and standard error: the command writes to them here and nowhere else.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace tilewise::cli {

// A closed one would become the next file that is opened, and what is printed would go into that file.
void occupy_standard_descriptors() noexcept;

void write_output(std::string_view text) noexcept;
bool flush_output() noexcept;  // false, with errno, if anything that was written since the start has not arrived

template <typename... Args>
void print(fmt::format_string<Args...> pattern, Args&&... args) {
  write_output(fmt::format(pattern, std::forward<Args>(args)...));
}

// These take no memory. What standard error does not take is lost: there is nowhere left to say so.
void write_error(std::string_view text) noexcept;
void complain(std::string_view message) noexcept;     // one line: "tilewise COMMAND: message"
void complain_of(std::string_view command) noexcept;  // COMMAND from now on; the text must outlive all complaints

}  // namespace tilewise::cli
