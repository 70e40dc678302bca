// What the findings of a run most likely come from: the table that leads every red report (reports/causes.hpp).
#pragma once

#include <vector>

#include "reports/causes.hpp"

namespace suites {

// In the order of computation: the program and its set-up, memory, the ops, the model's stages, gradients, decoding,
// training, speed. Weights follow it, because what is wrong early makes what comes later wrong.
[[nodiscard]] std::vector<reports::CauseRule> causes();

}  // namespace suites
