#include "suites/flag_matrix/witness.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "nsa/sdpa/sdpa.hpp"

namespace suites::flag_witness {

namespace {

using flag_execution::Execution;
using flag_execution::Plan;
using probes::OpCounts;
using reports::Json;

// The judgements on one execution.
class Judge {
 public:
  Judge(const nsa::Environment& environment, const Yardstick& yardstick, const Execution& seen)
      : environment_(environment), yardstick_(yardstick), seen_(seen) {}

  void way(const std::string& op, const std::string& wanted) {
    if (!seen_.called(op)) return;  // branches() asks whether it should have been
    const std::vector<flag_ways::Way>& ways = yardstick_.ways.at(op);
    const OpCounts& ran = seen_.ops.at(op);
    const std::vector<std::string> closest = flag_ways::closest(ran, ways);
    if (std::find(closest.begin(), closest.end(), wanted) != closest.end()) return;
    const auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& w) { return w.name == wanted; });
    const OpCounts requested = way == ways.end() ? OpCounts{} : way->ops;
    std::vector<std::string> lacking;
    for (const auto& [name, times] : flag_ways::missing(requested, ran)) lacking.push_back(name);
    disagree(fmt::format("{} must run as {}, but ran as {}; operations that did not run: {}", op, wanted,
                         fmt::join(closest, " or "), fmt::join(lacking, ", ")),
             {{"op", op},
              {"requested", wanted},
              {"executed", closest},
              {"requested_ops", requested},
              {"executed_ops", ran}});
  }

  // A forced branch runs alone; else all three run.
  void branches() {
    const auto forced = environment_.find("NSA_FORCE_BRANCH");
    const std::map<std::string, std::string> ops = {
        {"cmp", "attend_compressed"}, {"sel", "attend_selected"}, {"win", "attend_window"}};
    for (const auto& [branch, op] : ops) {
      const bool wanted = forced == environment_.end() || forced->second == branch;
      if (seen_.called(op) == wanted) continue;
      disagree(fmt::format("{} {}", op, wanted ? "did not run" : "ran although another branch is forced"),
               {{"op", op}, {"executed", seen_.called(op)}});
    }
  }

  void uniform_gate() {
    if (!seen_.gates.defined()) return;
    const double distance = (seen_.gates.to(at::kDouble) - 1.0 / 3.0).abs().max().item<double>();
    const bool uniform = distance < 1e-6;  // 1/3 in fp32
    if (uniform == environment_.contains("NSA_FORCE_UNIFORM_GATE")) return;
    disagree(uniform ? "every gate that came to combine is 1/3 without being told to"
                     : "the gates that came to combine are not 1/3",
             {{"largest_distance_from_a_third", reports::number(distance)}});
  }

  // Gates that mix get a gradient, stopped, forced and uniform ones do not.
  void gate_gradients() {
    if (!yardstick_.training) return;
    const bool wanted = !environment_.contains("NSA_STOPGRAD_GATES") && !environment_.contains("NSA_FORCE_BRANCH") &&
                        !environment_.contains("NSA_FORCE_UNIFORM_GATE");
    if (seen_.gates_have_gradient != wanted) {
      disagree(wanted ? "the gate's parameters get no gradient"
                      : "the gate's parameters get a gradient although it must be stopped",
               {{"gate_gradient", seen_.gates_have_gradient}});
    }
    if (!seen_.others_have_gradient)
      disagree("no other parameter gets a gradient", {{"gate_gradient", seen_.gates_have_gradient}});
  }

  // A finiteness test of every branch that ran.
  void strict_asserts() {
    // Under NSA_FORCE_PARITY the reference is what runs; there is nothing to fall back to.
    const bool wanted = environment_.contains("NSA_STRICT_ASSERTS") && !environment_.contains("NSA_FORCE_PARITY");
    for (const std::string op : {"attend_compressed", "attend_selected", "attend_window"}) {
      if (!seen_.called(op)) continue;
      const OpCounts& ran = seen_.ops.at(op);
      const bool looked = std::any_of(ran.begin(), ran.end(), [](const auto& item) {
        return item.first.find("isfinite") != std::string::npos || item.first.find("isnan") != std::string::npos;
      });
      if (wanted && !looked) {
        disagree(fmt::format("no operation looked whether the output of {} is finite", op),
                 {{"op", op}, {"executed_ops", ran}});
      }
    }
  }

  // Positions times 2 turn the queries differently; nothing else may.
  void rope_scale() {
    const auto queries = [](const Execution& e) {
      return e.called("attend_window")       ? e.inputs.window.q
             : e.called("attend_compressed") ? e.inputs.compressed.q
                                             : e.inputs.selected.q;
    };
    const bool same = at::equal(queries(seen_), queries(yardstick_.plain));
    const bool wanted = !environment_.contains("NSA_ROPE_SCALE");
    if (same != wanted) {
      disagree(
          same ? "the queries are turned as if NSA_ROPE_SCALE were 1" : "the queries differ from those without flags",
          {{"queries_bit_equal", same}});
    }
  }

  std::vector<Disagreement> found;

 private:
  void disagree(std::string what, Json evidence) { found.push_back({std::move(what), std::move(evidence)}); }

  const nsa::Environment& environment_;
  const Yardstick& yardstick_;
  const Execution& seen_;
};

}  // namespace

Yardstick measure(const Plan& plan, bool training) {
  const auto how = training ? nsa::sdpa::Selection::packed_safe : nsa::sdpa::Selection::packed;
  const auto by_name = std::make_shared<Seams>();
  by_name->ops.push_back([how](nsa::Ops, const nsa::Call&) { return nsa::sdpa::ops(how); });
  Yardstick yardstick;
  yardstick.training = training;
  yardstick.plain = flag_execution::execute(Subject(by_name), plan, {}, training);
  const at::AutoGradMode mode(training);
  yardstick.ways = flag_ways::demonstrate(yardstick.plain.inputs);
  return yardstick;
}

std::vector<Disagreement> judge(const nsa::Environment& environment, const Yardstick& yardstick, const Execution& seen,
                                const Plan& plan) {
  const flag_truth::Ways ways =
      flag_truth::expected_ways(environment, flag_execution::call_of(plan, yardstick.training));
  Judge judge(environment, yardstick, seen);
  judge.way("attend_compressed", ways.compressed);
  judge.way("attend_selected", ways.selected);
  judge.way("attend_window", ways.window);
  judge.branches();
  judge.uniform_gate();
  judge.gate_gradients();
  judge.strict_asserts();
  judge.rope_scale();
  return judge.found;
}

}  // namespace suites::flag_witness
