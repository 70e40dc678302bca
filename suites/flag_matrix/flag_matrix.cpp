// The NSA_* flags: what they mean by written tables, what they do by the operations that really ran.
#include "suites/flag_matrix/checks.hpp"
#include "suites/program.hpp"

namespace suites {

using harness::Case;
using harness::Context;
namespace checks = flag_checks;

namespace {

// One layer with the heads and blocks of the model in use, at a length that no block size divides. What runs does not
// depend on the residual stream's width: a narrow one makes hundreds of executions cheap.
flag_execution::Plan plan(const Subject& subject, const Context& context) {
  flag_execution::Plan plan;
  plan.model = subject.config(context).model;
  plan.model.n_layers = 1;
  plan.model.dim = 64;
  plan.precision = context.cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32;
  plan.device = device_of(context);
  plan.S = 2 * plan.model.nsa.l_sel + 3;
  plan.seed = context.seed("weights");
  return plan;
}

}  // namespace

harness::Suite flag_matrix(const Subject& subject) {
  harness::Suite suite;
  suite.name = "flag_matrix";
  suite.purpose = "every NSA_* flag means what its table says, and what runs is what was asked for";
  suite.requires_suites = {"preflight"};
  suite.cases = [subject](const harness::Settings&) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, std::function<void(Context&)> run) -> Case& {
      cases.push_back({.name = name, .params = {}, .run = std::move(run)});
      return cases.back();
    };
    add("fa2_truth_table", checks::fa2_truth_table);
    add("settings_in_force", checks::settings_in_force);
    add("illegal_settings", checks::illegal_settings);
    add("singles", [=](Context& x) { checks::singles(subject, x, plan(subject, x)); });
    add("pairs", [=](Context& x) { checks::pairs(subject, x, plan(subject, x)); });
    add("fa2_executed", [=](Context& x) { checks::fa2_executed(subject, x, plan(subject, x)); }).needs_cuda = true;
    return cases;
  };
  return suite;
}

}  // namespace suites
