// Starts a program with exactly the descriptors that it is meant to have.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

namespace suites::implementation {

inline constexpr int kFirstPassed = 3;  // the number that the first of `Program::passed` gets

struct Program {
  std::vector<std::string> argv;         // argv[0] is looked for in PATH
  std::vector<std::string> environment;  // "NAME=value", besides or instead of this process's own
  int output = -1;                       // becomes standard output and standard error
  std::vector<int> passed;               // become 3, 4, ...
};

// In a process group of its own, with default signal handling, nothing blocked and /dev/null as standard input. No
// other descriptor is passed on, also none that somebody opened without close-on-exec. Throws std::system_error.
//
// Danger: a child that asks to die with its parent (PR_SET_PDEATHSIG) dies with the thread that called this.
[[nodiscard]] pid_t spawn(const Program& program);

}  // namespace suites::implementation
