// A run without workers (--isolation none) happens in one process, where a case can end everything: exit(0), _exit(0),
// a crash. So that no such end is taken for a verdict, the run is a child of a process that only waits for it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "reports/status.hpp"

namespace harness {

struct Watched {
  std::optional<reports::ExitCode> code;  // absent: the child ended in the middle of its work
  std::string how;                        // "exited with status 0", "died by SIGSEGV (Segmentation fault)"
  bool by_signal = false;
  std::optional<int> interrupted;  // the signal that this process passed on to it
};

// Does `work`, which does not throw, in a child of this process and waits for it; signals that ask to stop are passed
// on. The child has the default of all signals, for debuggers, and ends with this process. Its code counts when it was
// said after the work and is its exit status too. Throws InfrastructureError when there can be no child.
[[nodiscard]] Watched run_watched(const std::function<reports::ExitCode()>& work);

}  // namespace harness
