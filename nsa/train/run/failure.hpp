// What an error of a run means: the code that the program ends with, and the message.
#pragma once

#include <stdexcept>
#include <string>

#include "nsa/train/run/exit_code.hpp"

namespace nsa::train {

struct Failure {
  ExitCode code;
  std::string message;
};
// Of the exception that is being handled.
[[nodiscard]] Failure explain();

// Rank 0 could not do what all ranks need of it; all of them know, and end with its code.
class RunRefused : public std::runtime_error {
 public:
  explicit RunRefused(const Failure& failure) : std::runtime_error(failure.message), code(failure.code) {}
  ExitCode code;
};

}  // namespace nsa::train
