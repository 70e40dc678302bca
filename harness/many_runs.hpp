// Many runs of a program, several at once.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace harness {

struct Job {
  std::string name;
  std::vector<std::string> argv;
  std::filesystem::path log;  // its standard output and error
};

struct Ended {
  int exit_code = 0;    // 128 + signal
  std::string trouble;  // it was ended by us, or could not be started
  double wall_s = 0;
  bool overran = false;  // it had used up its time, and was killed
};

struct Limits {
  std::size_t at_once = 1;
  double seconds = 600;  // of one run; then it is killed
};

// Runs `executable` once for each job, and calls `ended` as they end, in any order. `tick`: names of those that go on,
// a few times a second. Returns the signal that asked to stop (what ran was killed then, and `ended` is not called for
// it), 0 when all ended.
int run_all(const std::string& executable, std::span<const Job> jobs, const Limits& limits,
            const std::function<void(std::size_t, const Ended&)>& ended,
            const std::function<void(const std::vector<std::string>&)>& tick);

// What run_all tells the runs in their environment: its process. A run that finds it ends (by SIGTERM, as if it were
// asked to) when that process has ended, however it did. Called once, at the beginning of a program.
inline constexpr const char* kStarterVariable = "HARNESS_STARTER";
void end_with_starter();

}  // namespace harness
