#include "suites/autograd/model_ways.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "harness/context.hpp"

namespace suites::autograd_cases {

namespace {

using nsa::EffectiveFlags;
using nsa::ForcedBranch;

ModelWay by(const std::string& name, const Way& way) {
  return {.name = name, .flags = way.flags(), .needs_cuda = way.needs_cuda, .backend = &way};
}

// By sdpa, and what else is changed.
ModelWay changed(const std::string& name, const std::function<void(ModelWay&)>& change) {
  ModelWay made = by(name, way_named("sdpa"));
  change(made);
  return made;
}

ModelWay silenced(const std::string& name, const std::function<void(nsa::EffectiveFlags&)>& change) {
  return changed(name, [&](ModelWay& w) {
    w.backend = nullptr;
    change(w.flags);
  });
}

ModelWay forced(const std::string& name, ForcedBranch branch) {
  return silenced(name, [&](nsa::EffectiveFlags& flags) { flags.forced_branch = branch; });
}

bool contains(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

}  // namespace

const std::vector<ModelWay>& model_ways() {
  static const std::vector<ModelWay> all = [] {
    std::vector<ModelWay> made;
    for (const Way* way : suites::model_ways(Way::OfModel::checked))
      made.push_back(by(way->name == "sdpa_masked" ? "masked" : way->name, *way));  // names of cases stay as they are
    made.push_back(changed("strict", [](ModelWay& w) { w.flags.strict_asserts = true; }));
    made.push_back(changed("recompute", [](ModelWay& w) { w.recompute = true; }));
    return made;
  }();
  return all;
}

const std::vector<ModelWay>& silencing_ways() {
  static const std::vector<ModelWay> all = {
      forced("forced_cmp", ForcedBranch::cmp), forced("forced_sel", ForcedBranch::sel),
      forced("forced_win", ForcedBranch::win),
      silenced("uniform_gate", [](nsa::EffectiveFlags& flags) { flags.uniform_gate = true; }),
      silenced("stopgrad_gates", [](nsa::EffectiveFlags& flags) { flags.stopgrad_gates = true; })};
  return all;
}

const ModelWay& model_way(const std::string& name) {
  for (const auto* ways : {&model_ways(), &silencing_ways()}) {
    const auto found = std::find_if(ways->begin(), ways->end(), [&](const ModelWay& w) { return w.name == name; });
    if (found != ways->end()) return *found;
  }
  throw std::out_of_range("no way through the model is called " + name);
}

void require_route(const Instance& instance, const ModelWay& way) {
  if (way.backend == nullptr) return;
  const std::vector<nsa::Taken> record = instance.dispatcher->routes_taken();
  if (took(record, *way.backend)) return;
  std::string lines;
  for (const nsa::Taken& taken : record) {
    const nsa::Choice& choice = taken.choice;
    const std::string line = fmt::format("{}: {} ({})", nsa::to_string(taken.op), nsa::to_string(choice), choice.why);
    // What the feature table does not serve is no fault: other widths, another geometry.
    const nsa::Backend wanted = way.backend->parts.at(taken.op).backend;
    if (std::any_of(choice.refused.begin(), choice.refused.end(),
                    [&](const nsa::Refused& refused) { return refused.backend == wanted; }))
      throw harness::Skipped{"unsupported", line};
    lines += "\n  " + line;
  }
  throw std::logic_error(fmt::format("way {} did not run as {}, but:{}", way.name, way.backend->name, lines));
}

bool output_is_cut(const std::string& name, const EffectiveFlags& flags) {
  const bool is_forced = flags.forced_branch != ForcedBranch::none;
  if (contains(name, ".gate.")) return is_forced || flags.uniform_gate;
  const auto other = [&](ForcedBranch branch) { return is_forced && flags.forced_branch != branch; };
  if (contains(name, "_cmp.") || contains(name, ".phi_")) return other(ForcedBranch::cmp);
  if (contains(name, "_sel.")) return other(ForcedBranch::sel);
  return contains(name, "_win.") && other(ForcedBranch::win);
}

bool gradient_is_cut(const std::string& name, const EffectiveFlags& flags) {
  return output_is_cut(name, flags) || (flags.stopgrad_gates && contains(name, ".gate."));
}

}  // namespace suites::autograd_cases
