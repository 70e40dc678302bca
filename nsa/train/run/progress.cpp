#include "nsa/train/run/progress.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/streams.hpp"

namespace nsa::train {

std::string remaining_time(double seconds) {
  const auto all = std::llround(seconds);
  const std::int64_t days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, all % 60);
  return fmt::format("{}:{:02}", minutes, all % 60);
}

void Progress::step(const Figures& figures, bool logged) {
  if (options_.quiet || (!options_.live && !logged)) return;
  if (options_.live && line_.is_fresh()) return;
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
  line_.draw(line);
}

void Progress::say(const std::string& message) {
  if (options_.quiet) return;
  line_.clear();
  base::err("{}\n", message);
}

void Progress::warn(const std::string& message) {
  line_.clear();
  base::err("nsa-train: {}\n", message);
}

}  // namespace nsa::train
