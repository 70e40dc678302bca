// The suite `distributed`: several processes that train one model, against one process that does.
#include <fmt/format.h>

#include "harness/suite.hpp"
#include "suites/distributed/cases.hpp"
#include "suites/subject.hpp"

namespace suites {

using distributed_cases::Trial;
using harness::Case;
using harness::Context;
using harness::Level;
using harness::Params;
using nsa::Precision;

namespace {

constexpr std::chrono::seconds kLongest{300};

Case of_standard(std::string name, Params params, std::function<void(Context&)> run) {
  return {.name = std::move(name),
          .params = std::move(params),
          .level = Level::standard,
          .timeout = kLongest,
          .run = std::move(run)};
}

// Its process could not serve those of the ranks.
std::function<void(Context&)> of_ours(const Subject& subject, std::function<void(Context&)> run) {
  return [subject, run = std::move(run)](Context& context) {
    if (subject.implementation())
      context.skip("not_applicable", "ranks are processes that compute with our own functions");
    run(context);
  };
}

void plan_parity(const Subject& subject, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, Params params, const Trial& trial) {
    cases.push_back(of_standard(name, std::move(params), [subject, trial](Context& context) {
      distributed_cases::parity(subject, context, trial);
    }));
  };
  for (const int ranks : {2, 3, 4, 8})
    add("parity", {{"precision", "fp32"}, {"ranks", std::to_string(ranks)}},
        {.ranks = ranks, .precision = Precision::fp32, .steps = 3, .rows = 24, .whole_batches = 3});
  for (const int ranks : {2, 3, 4})
    add("run", {{"ranks", std::to_string(ranks)}, {"steps", "20"}},
        {.ranks = ranks, .steps = 20, .rows = 12, .whole_batches = 20});
  // The first step, whose tensors are compared, is the uneven one; of a single row all ranks but one have none.
  add("uneven", {{"ranks", "3"}, {"rows", "7"}},
      {.ranks = 3, .steps = 2, .rows = 12, .whole_batches = 0, .left_rows = 7});
  add("uneven", {{"ranks", "4"}, {"rows", "1"}},
      {.ranks = 4, .steps = 1, .rows = 12, .whole_batches = 0, .left_rows = 0});
  add("accumulation", {{"batches", "3"}, {"last", "3"}, {"ranks", "2"}},
      {.ranks = 2, .steps = 1, .rows = 4, .accumulate = 3, .whole_batches = 2, .left_rows = 3});
  add("nccl", {{"ranks", "1"}}, {.ranks = 1, .precision = Precision::fp32, .steps = 3, .rows = 12, .whole_batches = 3});
  cases.back().needs_cuda = true;
  add("accumulation", {{"batches", "3"}, {"last", "4"}, {"ranks", "2"}},
      {.ranks = 2, .steps = 4, .rows = 4, .accumulate = 3, .whole_batches = 12});
}

std::vector<harness::SettingSpec> distributed_settings() {
  return {{.key = "distributed.timeout_s",
           .type = harness::SettingType::real,
           .default_value = "20",
           .meaning = "seconds that a rank waits for the others before it says who is missing",
           .allowed = "1 and more",
           .minimum = 1}};
}

}  // namespace

harness::Suite distributed(const Subject& subject) {
  harness::Suite suite;
  suite.name = "distributed";
  suite.purpose =
      "N processes train the same model as one does, bit for bit alike among themselves, and each failure of one of "
      "them is told by name and leaves no process behind.";
  suite.requires_suites = {"forward"};
  suite.runs_after = "training";
  suite.settings = distributed_settings();
  suite.cases = [subject](const harness::Settings&) {
    std::vector<Case> cases = {{.name = "two_ranks", .params = {}, .run = [subject](Context& context) {
                                  distributed_cases::parity(subject, context, {.ranks = 2, .steps = 4, .rows = 6});
                                }}};
    plan_parity(subject, cases);
    for (const auto& [from, to] : {std::pair{2, 3}, {3, 1}, {1, 2}})
      cases.push_back(of_standard("resume", {{"from", std::to_string(from)}, {"to", std::to_string(to)}},
                                  [subject, from = from, to = to](Context& context) {
                                    distributed_cases::resume(subject, context, from, to);
                                  }));
    for (const distributed_cases::Failure& failure : distributed_cases::failures())
      cases.push_back(of_standard(
          "failure", {{"fault", std::string(failure.fault)}},
          [subject, failure](Context& context) { distributed_cases::failure(subject, context, failure, 3); }));
    for (const int ranks : {2, 4})
      cases.push_back(of_standard("pace", {{"ranks", std::to_string(ranks)}}, [subject, ranks](Context& context) {
        distributed_cases::pace(subject, context, ranks);
      }));
    for (Case& one : cases) one.run = of_ours(subject, std::move(one.run));
    return cases;
  };
  return suite;
}

}  // namespace suites
