#include "base/live_line.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/streams.hpp"

namespace base {

namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool want_live_line() {
  return isatty(STDERR_FILENO) == 1 && variable("CI").empty() && !variable("TERM").empty() &&
         variable("TERM") != "dumb";
}

bool LiveLine::is_fresh() const { return shown_ && std::chrono::steady_clock::now() - drawn_ < kRedraw; }

void LiveLine::draw(std::string_view text) {
  err("\r\033[K{}", text.substr(0, terminal_width() - 1));
  std::fflush(stderr);
  drawn_ = std::chrono::steady_clock::now();
  shown_ = true;
}

void LiveLine::clear() {
  if (!shown_) return;
  err("\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace base
