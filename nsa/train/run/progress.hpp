// What a person sees on stderr: one line that is drawn over on a terminal, one line a logged step elsewhere, and
// messages. Never part of a result.
#pragma once

#include <cstdint>
#include <string>

#include "base/live_line.hpp"

namespace nsa::train {

class Progress {
 public:
  struct Options {
    bool quiet = false;
    bool live = false;  // base::want_live_line()
    std::int64_t last_step = 0;
  };
  explicit Progress(const Options& options) : options_(options) {}

  struct Figures {
    std::int64_t step = 0;
    double loss = 0, lr = 0, tok_per_s = 0, median_step_s = 0;
  };
  void step(const Figures& figures, bool logged);
  void say(const std::string& message);   // silent when quiet
  void warn(const std::string& message);  // always shown

 private:
  Options options_;
  base::LiveLine line_;
};

[[nodiscard]] std::string remaining_time(double seconds);  // "3:07", "2:03:07", "4d 02:03"

}  // namespace nsa::train
