// Are two runs the same? What is compared of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nsa/train/state.hpp"
#include "nsa/train/trainer.hpp"

namespace suites::training_cases {

// The tensors of one part ("model/", "optimizer/", "rng/"; "": all) whose bits differ, or that are in one state only.
[[nodiscard]] std::vector<std::string> differences(const nsa::train::TrainState& a, const nsa::train::TrainState& b,
                                                   std::string_view part);

// The largest difference of loss and gradient norm from step `from` on, as a share of each; 0 when they are the same
// bits; infinite when the runs differ in length or rate, and when a figure of one of them alone is not finite.
[[nodiscard]] double spread(const std::vector<nsa::train::StepReport>& a, const std::vector<nsa::train::StepReport>& b,
                            std::size_t from);

}  // namespace suites::training_cases
