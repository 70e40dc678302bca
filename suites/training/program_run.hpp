// The program nsa-train, run in this process as a person would type it.
#pragma once

#include <string>
#include <vector>

#include "nsa/train/run/training.hpp"

namespace suites::training_cases {

struct ProgramEnd {
  int exit_code = 0;
  std::string output;  // what stood on standard output, line after line
  std::string error;   // its last line on standard error that tells of an error; "" without one
};
// `arguments` without the program's name. Standard output and error are this process's own again afterwards, and what
// the program wrote there is written on. Throws std::runtime_error when they cannot be listened to.
[[nodiscard]] ProgramEnd run_nsa_train(std::vector<std::string> arguments, const nsa::train::Seams& seams = {});

}  // namespace suites::training_cases
