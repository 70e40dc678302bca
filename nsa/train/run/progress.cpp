#include "nsa/train/run/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "base/streams.hpp"

namespace nsa::train {

namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

}  // namespace

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

std::string remaining_time(double seconds) {
  const auto all = static_cast<std::int64_t>(seconds + 0.5);
  const std::int64_t days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, all % 60);
  return fmt::format("{}:{:02}", minutes, all % 60);
}

void Progress::step(const Figures& figures, bool logged) {
  if (options_.quiet || (!options_.live && !logged)) return;
  const auto now = std::chrono::steady_clock::now();
  if (options_.live && shown_ && now - drawn_ < kRedraw) return;
  std::string line =
      fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}", figures.step, options_.last_step, figures.loss, figures.lr);
  if (figures.tok_per_s > 0) line += fmt::format("  {:.0f} tok/s", figures.tok_per_s);
  if (figures.median_step_s > 0) {
    const auto left = static_cast<double>(options_.last_step - figures.step);
    line += "  ETA " + remaining_time(left * figures.median_step_s);
  }
  if (!options_.live) {
    base::err("{}\n", line);
    return;
  }
  base::err("\r\033[K{}", line.substr(0, terminal_width() - 1));
  std::fflush(stderr);
  shown_ = true;
  drawn_ = now;
}

void Progress::say(const std::string& message) {
  if (options_.quiet) return;
  clear();
  base::err("{}\n", message);
}

void Progress::warn(const std::string& message) {
  clear();
  base::err("nsa-train: {}\n", message);
}

void Progress::clear() {
  if (!shown_) return;
  base::err("\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace nsa::train
