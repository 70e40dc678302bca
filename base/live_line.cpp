#include "base/live_line.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "base/environment.hpp"
#include "base/streams.hpp"

namespace base {

namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

}  // namespace

bool want_live_line() {
  const std::string terminal = variable("TERM").value_or("");
  return isatty(STDERR_FILENO) == 1 && variable("CI").value_or("").empty() && !terminal.empty() && terminal != "dumb";
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
