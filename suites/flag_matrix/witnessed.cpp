#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/flag_matrix/witness.hpp"
#include "suites/probes/one_thread.hpp"

namespace suites::flag_checks {

namespace {

using flag_truth::Setting;
using flag_witness::Yardstick;

constexpr std::size_t kQuoted = 12;  // of many disagreements of one case

// Collects disagreements of one case and tells them as one finding: an ignored flag shows in many combinations.
class Record {
 public:
  explicit Record(Context& context) : context_(context) {}

  void add(const nsa::Environment& environment, bool training, std::vector<flag_witness::Disagreement> found) {
    ++executed_;
    for (flag_witness::Disagreement& d : found) {
      Json setting = Json::object();
      std::string text;
      for (const auto& [name, value] : environment) {
        setting[name] = value;
        text += fmt::format("{}={} ", name, value);
      }
      if (first_.empty()) first_ = text + (training ? "with" : "without") + " gradients: " + d.what;
      ++count_;
      if (rows_.size() >= kQuoted) continue;
      Json row = {{"setting", setting}, {"gradients", training}, {"what", d.what}};
      row.update(d.evidence);
      rows_.push_back(row);
    }
  }

  void tell(const std::string& name) {
    context_.metric("executions", executed_, "1");
    context_.expect(name, count_ == 0,
                    fmt::format("{} disagreement(s) in {} executions; the first: {}", count_, executed_, first_),
                    codes::kFlagIgnored, {{"disagreements", rows_}, {"count", count_}});
  }

 private:
  Context& context_;
  Json rows_ = Json::array();
  std::string first_;
  int count_ = 0, executed_ = 0;
};

void run(const Subject& subject, Context& context, const flag_execution::Plan& plan, const Yardstick& yardstick,
         const nsa::Environment& environment, Record& record) {
  context.progress();
  const nsa::EffectiveFlags flags = nsa::resolve(environment);
  record.add(environment, yardstick.training,
             flag_witness::judge(environment, yardstick,
                                 flag_execution::execute(subject, plan, flags, yardstick.training), plan));
}

// Ways that cannot be told apart by their operations would make every judgement about them empty.
void check_yardstick(Context& context, const Yardstick& yardstick) {
  Json table = Json::object();
  std::vector<std::string> blind;
  for (const auto& [op, ways] : yardstick.ways) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      table[op][ways[i].name] = ways[i].ops;
      for (std::size_t j = i + 1; j < ways.size(); ++j) {
        if (ways[i].ops == ways[j].ops) blind.push_back(fmt::format("{}: {} and {}", op, ways[i].name, ways[j].name));
      }
    }
  }
  const std::string mode = yardstick.training ? "with_gradients" : "without_gradients";
  context.fact("operations_of_each_way." + mode, table);
  context.expect("ways_differ." + mode, blind.empty(),
                 fmt::format("these ways run the same operations: {}", fmt::join(blind, "; ")), codes::kFlagIgnored,
                 {{"same", blind}});
}

}  // namespace

void singles(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  Record record(context);
  for (const bool training : {false, true}) {
    context.phase(training ? "with gradients" : "without gradients");
    const Yardstick yardstick = flag_witness::measure(plan, training);
    check_yardstick(context, yardstick);
    run(subject, context, plan, yardstick, {}, record);
    for (const Setting& setting : flag_truth::settings()) {
      const nsa::Environment environment = flag_truth::together({&setting});
      if (!flag_truth::contradictory(environment)) run(subject, context, plan, yardstick, environment, record);
    }
  }
  context.fact("not_witnessed_here", {"NSA_NVTX (ranges are no operations)", "NSA_DETECT_ANOMALY (the trainer's)"});
  record.tell("singles");
}

void pairs(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  Record record(context);
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
          run(subject, context, plan, yardstick, environment, record);
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
  record.tell("pairs");
}

void fa2_executed(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  Record record(context);
  for (const bool training : {false, true}) {
    context.phase(training ? "with gradients" : "without gradients");
    const Yardstick yardstick = flag_witness::measure(plan, training);
    for (const flag_truth::Fa2Row& row : flag_truth::fa2_table()) {
      run(subject, context, plan, yardstick, row.environment(), record);
    }
  }
  record.tell("fa2_settings");
}

}  // namespace suites::flag_checks
