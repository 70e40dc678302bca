// What many executions of one case showed, told as one finding for each kind: an ignored flag shows in many of them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/context.hpp"
#include "suites/flag_matrix/witness.hpp"

namespace suites::flag_record {

class Record {
 public:
  void add(const nsa::Environment& environment, bool training, const flag_execution::Execution& seen,
           const std::vector<flag_witness::Disagreement>& found);
  // The product refused the pass itself: its own cu_seqlens broke their contract on the way to an op.
  void add_refused(const nsa::Environment& environment, bool training, const std::string& message);
  // One check for each kind of disagreement, and findings for what autograd or a contract refused.
  void tell(harness::Context& context, const std::string& name) const;
  [[nodiscard]] int executed() const { return executed_; }

 private:
  struct Kind {
    int count = 0;
    std::string first;
    std::vector<std::string> settings;  // each once, "no flag" among them
    harness::Json rows = harness::Json::array();
    void add(const nsa::Environment& environment, bool training, const std::string& what,
             const harness::Json& evidence);
  };
  std::map<std::string_view, Kind> kinds_;  // by finding code
  std::optional<probes::InplaceWrite> overwritten_;
  Kind refused_backward_, refused_forward_;
  int executed_ = 0;
};

// Everything that an execution needs but the flags.
struct Bench {
  const Subject& subject;
  harness::Context& context;
  const flag_execution::Plan& plan;
  const flag_witness::Yardstick& yardstick;
};
// Executes under `environment`, which must be legal, and records what disagrees.
void run(const Bench& bench, const nsa::Environment& environment, Record& record);

}  // namespace suites::flag_record
