// base::kStopSignals as a wish to stop after the step; a second SIGINT or SIGTERM ends the process at once. Files that
// grow beyond a limit and closed pipes become errors of the write instead of signals.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace nsa::train {

class StopSignals {
 public:
  // One at a time. `starter`: of a rank, which gets SIGUSR1 when that process dies.
  explicit StopSignals(std::optional<pid_t> starter = {});
  ~StopSignals();  // what was there before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal that arrived.
  [[nodiscard]] std::optional<int> arrived() const;
  [[nodiscard]] bool starter_died() const;   // that is why it arrived
  [[nodiscard]] std::string reason() const;  // "SIGTERM", "starter_died"; "" before any arrived

 private:
  std::optional<pid_t> starter_;
};

}  // namespace nsa::train
