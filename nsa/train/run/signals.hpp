// base::kStopSignals as a wish to stop after the step; a second SIGINT or SIGTERM ends the process at once. Files that
// grow beyond a limit and closed pipes become errors of the write instead of signals.
#pragma once

#include <optional>

namespace nsa::train {

class StopSignals {
 public:
  StopSignals();   // one at a time
  ~StopSignals();  // what was there before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal that arrived.
  [[nodiscard]] std::optional<int> arrived() const;
};

}  // namespace nsa::train
