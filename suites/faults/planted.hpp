// A planted fault, and what the self-test (selftest/) must know of it. Plain: no torch.
#pragma once

#include <string>

#include "harness/program.hpp"

namespace suites {

// In the folder of a run: a mutant of the sources (faults/sources/) was computed.
inline constexpr const char* kReachedFile = "mutant_reached";

struct Planted : harness::Fault {
  std::string group;        // what is wrong: "init", "kernels", "harness", ...
  std::string found_by;     // the shortest run that is to find it: suites, comma-separated, or cases ('/' in it)
  bool must_catch = false;  // also without a baseline that says so (faults_test plants these in every CI)
  bool needs_gpu = false;   // nothing on a CPU shows it
  bool any_code = false;    // whatever it breaks: any code finds it but the harness's own; it then expects none
  int exit_code = 0;        // what the run ends with where no finding can be told, since the run itself is lost
};

}  // namespace suites
