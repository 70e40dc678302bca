// Records as ranks would write them, made up: healthy ones, to be changed by a test.
#pragma once

#include "suites/distributed/agreement.hpp"

namespace suites::distributed_ranks::tests {

// `steps` steps of `size` ranks; rank r has row "row S.r" of step S, and all parameters are alike.
[[nodiscard]] inline Records healthy(int size, int steps = 3) {
  Records records;
  for (int rank = 0; rank < size; ++rank) {
    RankRecord record;
    record.rank = rank;
    record.size = size;
    record.clock_s = 1000;
    record.done = true;
    for (int s = 0; s < steps; ++s) {
      StepSeen step;
      step.step = s;
      step.loss = 5.5 - 0.1 * s;
      step.norm = 1.25;
      step.lr = 1e-3;
      step.tokens = 100;
      step.own_seconds = 0.010 + 0.0001 * rank;
      step.rows = {"row " + std::to_string(s) + "." + std::to_string(rank)};
      step.parameters = {{"embedding", "aa" + std::to_string(s), 0.5, 1, true},
                         {"head", "bb" + std::to_string(s), 0.25, 1, true}};
      step.reduced_elements = 30;
      record.steps.push_back(step);
    }
    records.push_back(record);
  }
  return records;
}

// What one process writes of the same run.
[[nodiscard]] inline RankRecord alone(int rows, int steps = 3) {
  RankRecord record = healthy(1, steps).front();
  for (int s = 0; s < steps; ++s) {
    record.steps[static_cast<std::size_t>(s)].rows.clear();
    for (int row = 0; row < rows; ++row)
      record.steps[static_cast<std::size_t>(s)].rows.push_back("row " + std::to_string(s) + "." + std::to_string(row));
  }
  return record;
}

}  // namespace suites::distributed_ranks::tests
