// Does training wait for its data? Times of fetching a batch, against the time of a step.
#pragma once

#include <string>
#include <vector>

#include "harness/context.hpp"
#include "nsa/train/trainer.hpp"

namespace suites::throughput_cases {

// Seconds of each of `count` fetches, the first (which opens files) apart. Throws std::runtime_error when
// the source ends before.
struct Fetches {
  double first_s = 0;
  std::vector<double> seconds;

  [[nodiscard]] harness::Json to_json() const;
};
[[nodiscard]] Fetches fetch(harness::Context& context, const nsa::train::BatchSource& source, int count);

// What a run of training steps waited for its data.
struct Waiting {
  std::vector<double> fetch_s, step_s;

  [[nodiscard]] double percent() const;  // of the steps' time, all together
};
// Checks share and 95th percentile of `waiting` against throughput.data_percent and throughput.fetch_ms (NSA-P020).
void judge_loading(harness::Context& context, const Waiting& waiting, const harness::Json& sources);

}  // namespace suites::throughput_cases
