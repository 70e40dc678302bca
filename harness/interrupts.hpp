// base::kStopSignals as something to poll for, so that there is no handler and no global flag.
// They are held back in this thread while the object lives; children start with nothing held back (Process).
#pragma once

#include <signal.h>

#include <optional>

#include "harness/process.hpp"
#include "reports/status.hpp"

namespace harness {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  // The first signal that arrived; stays so.
  [[nodiscard]] std::optional<int> arrived();

 private:
  sigset_t before_;
  Fd fd_;
  std::optional<int> signal_;
};

// How a run ends that this signal has ended.
[[nodiscard]] reports::ExitCode interruption_by(int signal);

}  // namespace harness
