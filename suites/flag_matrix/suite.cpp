// The NSA_* flags: what they mean by written tables, what they do by the operations that really ran.
#include <array>

#include "harness/suite.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/subject.hpp"

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
  plan.precision = run_precision(context);
  plan.device = device_of(context);
  plan.S = 2 * plan.model.nsa.l_sel + 3;
  plan.seed = context.seed("weights");
  return plan;
}

// Lengths at which the branches differ in kind: no block is complete; one is; the window leaves tokens out; so does the
// selection. None is a multiple of a block.
struct Length {
  const char* name;
  std::int64_t (*of)(const nsa::Geometry& g);
};
constexpr std::array kLengths = {
    Length{"no_block", [](const nsa::Geometry& g) { return g.l - 1; }},
    Length{"one_block", [](const nsa::Geometry& g) { return g.l + 1; }},
    Length{"past_window", [](const nsa::Geometry& g) { return g.w + 5; }},
    Length{"past_selection", [](const nsa::Geometry& g) { return g.n_sel * g.l_sel + 3; }}};

flag_execution::Plan plan_of(const Subject& subject, const Context& context, const Length& length, bool packed) {
  flag_execution::Plan p = plan(subject, context);
  const std::int64_t S = length.of(p.model.nsa);
  p.packed = packed;
  p.B = packed ? 1 : 2;
  p.S = packed ? flag_execution::packed_length(S) : S;
  return p;
}

}  // namespace

harness::Suite flag_matrix(const Subject& subject) {
  harness::Suite suite;
  suite.name = "flag_matrix";
  suite.purpose = "every NSA_* flag means what its table says, and what runs is what was asked for";
  suite.requires_suites = {"preflight"};
  suite.runs_after = "forward";
  suite.cases = [subject](const harness::Settings&) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, std::function<void(Context&)> run) -> Case& {
      cases.push_back({.name = name, .run = std::move(run)});
      return cases.back();
    };
    add("fa2_truth_table", checks::fa2_truth_table);
    add("settings_in_force", checks::settings_in_force);
    add("illegal_settings", checks::illegal_settings);
    add("cover_array", checks::cover_array);
    add("origins", checks::origins);
    add("singles", [=](Context& x) { checks::singles(subject, x, plan(subject, x)); });
    add("pairs", [=](Context& x) { checks::pairs(subject, x, plan(subject, x)); });
    add("fa2_executed", [=](Context& x) { checks::fa2_executed(subject, x, plan(subject, x)); }).needs_cuda = true;

    const auto deeper = [&](const std::string& name, std::function<void(Context&)> run) -> Case& {
      Case& c = add(name, std::move(run));
      c.level = harness::Level::standard;
      return c;
    };
    deeper("contracts", [=](Context& x) { checks::contracts(subject, x, plan(subject, x)); });
    deeper("after_construction", [=](Context& x) { checks::after_construction(subject, x, plan(subject, x)); });
    for (const bool packed : {false, true})
      for (const Length& length : kLengths)
        deeper("cover", [=](Context& x) { checks::cover(subject, x, plan_of(subject, x, length, packed)); }).params = {
            {"batch", packed ? "packed" : "dense"}, {"length", length.name}};
    return cases;
  };
  return suite;
}

}  // namespace suites
