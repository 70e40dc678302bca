#include <fmt/ranges.h>

#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/flag_matrix/record.hpp"
#include "suites/flag_matrix/witness.hpp"
#include "suites/probes/one_thread.hpp"

namespace suites::flag_checks {

namespace {

using flag_record::Record;
using flag_record::run;
using flag_truth::Setting;
using flag_witness::Yardstick;

// Ways that cannot be told apart by their operations would make every judgement about them empty.
void check_yardstick(Context& context, const Yardstick& yardstick) {
  Json table = Json::object();
  for (const auto& [op, ways] : yardstick.ways)
    for (const flag_footprint::Footprint& way : ways) table[op][way.way] = way.ops;
  const std::vector<std::string> blind = flag_witness::blind_spots(yardstick);
  const std::string mode = yardstick.training ? "with_gradients" : "without_gradients";
  context.fact("operations_of_each_way." + mode, table);
  context.expect("ways_differ." + mode, blind.empty(),
                 fmt::format("these ways run the same operations: {}", fmt::join(blind, "; ")), codes::kFlagIgnored,
                 {{"same", blind}});
}

}  // namespace

void singles(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  Record record;
  for (const bool training : {false, true}) {
    context.phase(training ? "with gradients" : "without gradients");
    const Yardstick yardstick = flag_witness::measure(plan, training);
    check_yardstick(context, yardstick);
    run({subject, context, plan, yardstick}, {}, record);
    for (const Setting& setting : flag_truth::settings()) {
      const nsa::Environment environment = flag_truth::together({&setting});
      if (!flag_truth::contradictory(environment)) run({subject, context, plan, yardstick}, environment, record);
    }
  }
  context.fact("not_witnessed_here", {"NSA_NVTX (ranges are no operations)", "NSA_DETECT_ANOMALY (the trainer's)"});
  record.tell(context, "singles");
}

void pairs(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  Record record;
  const std::vector<Setting>& all = flag_truth::settings();
  int executed = 0, refused = 0, possible = 0;
  for (const bool training : {false, true}) {
    context.phase(training ? "with gradients" : "without gradients");
    const Yardstick yardstick = flag_witness::measure(plan, training);
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = i + 1; j < all.size(); ++j) {
        if (all[i].name == all[j].name) continue;
        ++possible;
        const nsa::Environment environment = flag_truth::together({&all[i], &all[j]});
        if (!flag_truth::contradictory(environment)) {
          run({subject, context, plan, yardstick}, environment, record);
          ++executed;
          continue;
        }
        bool accepted = true;
        try {
          (void)nsa::resolve(environment);
        } catch (const nsa::FlagInvalid&) {
          accepted = false;
          ++refused;
        }
        if (accepted) {
          context.finding(codes::kIllegalFlagAccepted,
                          fmt::format("{} with {} was accepted", all[i].text(), all[j].text()),
                          {{"settings", {all[i].text(), all[j].text()}}});
        }
      }
    }
  }
  context.metric("pairs_executed", executed, "1");
  context.metric("pairs_refused", refused, "1");
  context.expect_equal("pairs_covered", executed + refused, possible, codes::kFlagIgnored);
  record.tell(context, "pairs");
}

void fa2_executed(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  Record record;
  for (const bool training : {false, true}) {
    context.phase(training ? "with gradients" : "without gradients");
    const Yardstick yardstick = flag_witness::measure(plan, training);
    for (const flag_truth::Fa2Row& row : flag_truth::fa2_table()) {
      run({subject, context, plan, yardstick}, row.environment(), record);
    }
  }
  record.tell(context, "fa2_settings");
}

}  // namespace suites::flag_checks
