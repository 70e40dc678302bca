// Standard output and standard error, which can be lost like any file: closed, a full disk, a reader that is gone.
// Writing never throws and raises no signal; what did not arrive stays known (ferror) until somebody asks.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace base {

// The first thing in main(). A closed descriptor of the three is taken, so that no file of ours gets its number
// (writing there goes on failing). Closed pipes and files beyond a limit become errors of the write instead of signals.
void guard_streams();

void write_to(std::FILE* stream, std::string_view text);

template <typename... Args>
void out(fmt::format_string<Args...> format, Args&&... args) {
  write_to(stdout, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void err(fmt::format_string<Args...> format, Args&&... args) {
  write_to(stderr, fmt::format(format, std::forward<Args>(args)...));
}

// The last line of `text` with its end, if it has one: what is left of it under --quiet. Empty lines behind it come
// along.
[[nodiscard]] std::string last_line(const std::string& text);

// A line on standard error; on standard output when that is lost.
void tell(std::string_view line);

// "WHO" and "error: WHAT", told.
void complain(std::string_view what, std::string_view who = "");

// Why nothing can be written to an open or closed descriptor, as far as it shows without writing: closed, open for
// reading only, a full disk, a pipe that nobody reads. nullopt: nothing speaks against it.
[[nodiscard]] std::optional<std::string> unwritable(int fd);

// Flushes. Why something that was said did not arrive; nullopt when all of it did.
[[nodiscard]] std::optional<std::string> lost(std::FILE* stream);

}  // namespace base
