// Comparison with an earlier report (setting throughput.baseline): SAME, FASTER, SLOWER or CANNOT TELL, for every
// measurement that both hold. Times of another GPU, model, precision or shape, and those that were taken on a busy
// machine, are refused, not compared.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "harness/context.hpp"
#include "nsa/config.hpp"
#include "suites/probes/decision.hpp"

namespace suites::throughput_cases {

// The device's name ("NVIDIA H200"); "" on a CPU.
[[nodiscard]] std::string gpu_name(const harness::Context& context);

// What must be the same for two times to be compared: device, model, precision, shape of a step.
[[nodiscard]] harness::Json identity(const harness::Context& context, const nsa::Config& config);

// What a case leaves for later runs to compare with, under the fact "comparable".
struct Comparable {
  harness::Json identity;
  std::map<std::string, probes::Timed> timed;  // by measurement: "step", "S=512 B=2 accumulation=1"
  std::string disturbed_by = {};  // of an earlier report: the load that they were taken under; "": none that is known

  [[nodiscard]] harness::Json to_json() const;
};

// An earlier report as far as it can be compared.
struct Baseline {
  std::string run_id;
  harness::Json provenance;
  harness::Json faults;                       // planted in that run; empty on a real one
  std::map<std::string, Comparable> by_case;  // name of the case -> what it left
};
// `path`: a report.json or the folder that holds it. Throws std::runtime_error (path, reason) for anything else.
[[nodiscard]] Baseline read_baseline(const std::filesystem::path& path);

// Why the two cannot be compared, each differing key with both values; "" when they can.
[[nodiscard]] std::string refusal(const harness::Json& theirs, const harness::Json& mine);

// Compares what `case_name` measured in this run. A change is believed only when `again` (which measures once more, by
// name) confirms it. Raises NSA-P014 to P017; fact "baseline"; does nothing when no baseline is set.
using Remeasure = std::function<probes::Timed(const std::string& name)>;
void compare_with_baseline(harness::Context& context, const std::string& case_name, const Comparable& mine,
                           const Remeasure& again);

}  // namespace suites::throughput_cases
