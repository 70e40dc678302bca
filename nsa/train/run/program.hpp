// nsa-train as a function: from the arguments to the exit code.
#pragma once

#include "nsa/train/run/training.hpp"

namespace nsa::train {

// Every error becomes one message on stderr and an exit code (exit_code.hpp).
[[nodiscard]] int run_program(int argc, const char* const* argv, const Seams& seams = {});

}  // namespace nsa::train
