// The program nsa-train, run in this process as a person would type it.
#pragma once

#include <string>
#include <vector>

#include "nsa/train/run/training.hpp"

namespace suites::training_cases {

struct ProgramEnd {
  int exit_code = 0;
  std::string output;  // what stood on standard output, line after line
  std::string error;   // why it ended with an error; "" where it did not
};
// `arguments` without the program's name. Standard output is this process's own again afterwards, and what the program
// wrote there is written on. Throws std::runtime_error when it cannot be listened to.
[[nodiscard]] ProgramEnd run_nsa_train(std::vector<std::string> arguments, const nsa::train::Seams& seams = {});

}  // namespace suites::training_cases
