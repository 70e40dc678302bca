#include "suites/autograd/model_ways.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "harness/context.hpp"

namespace suites::autograd_cases {

namespace {

using nsa::EffectiveFlags;
using nsa::ForcedBranch;

ModelWay way(const std::string& name, std::vector<std::string> routes,
             const std::function<void(ModelWay&)>& change = {}) {
  ModelWay made;
  made.name = name;
  made.routes = std::move(routes);
  made.flags.use_cuda = false;
  if (change) change(made);
  return made;
}

void mask(ModelWay& w) {
  w.flags.sel_pack = false;
  w.flags.sel_mask = true;
}

void flash(ModelWay& w) {
  w.flags.fa2_all = w.flags.fa2_win = w.flags.fa2_cmp = true;
  w.needs_cuda = true;
}

void kernels(ModelWay& w) {
  w.flags.use_cuda = true;
  w.needs_cuda = true;
}

ModelWay forced(const std::string& name, ForcedBranch branch) {
  return way(name, {}, [&](ModelWay& w) { w.flags.forced_branch = branch; });
}

bool contains(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

}  // namespace

const std::vector<ModelWay>& model_ways() {
  static const std::vector<ModelWay> all = {
      way("sdpa", {"attend_selected: sdpa/packed_safe"}),
      way("reference", {"attend_selected: reference"}, [](ModelWay& w) { w.flags.force_parity = true; }),
      way("masked", {"attend_selected: sdpa/masked"}, mask),
      way("strict", {"attend_selected: sdpa/packed_safe"}, [](ModelWay& w) { w.flags.strict_asserts = true; }),
      way("recompute", {"attend_selected: sdpa/packed_safe"}, [](ModelWay& w) { w.recompute = true; }),
      way("flash", {"attend_window: flash/"}, flash),
      way("cuda", {"attend: cuda/in_one", "attend_selected: cuda"}, kernels)};
  return all;
}

const std::vector<ModelWay>& silencing_ways() {
  static const std::vector<ModelWay> all = {
      forced("forced_cmp", ForcedBranch::cmp), forced("forced_sel", ForcedBranch::sel),
      forced("forced_win", ForcedBranch::win),
      way("uniform_gate", {}, [](ModelWay& w) { w.flags.uniform_gate = true; }),
      way("stopgrad_gates", {}, [](ModelWay& w) { w.flags.stopgrad_gates = true; })};
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
  if (way.routes.empty()) return;
  std::string taken;
  for (const auto& [route, calls] : instance.dispatcher->routes_taken()) {
    for (const std::string& wanted : way.routes)
      if (route.starts_with(wanted)) return;
    // What the feature table does not serve is no fault: other widths, another geometry.
    if (way.flags.use_cuda && contains(route, "cuda refused: ")) throw harness::Skipped{"unsupported", route};
    taken += "\n  " + route;
  }
  throw std::logic_error(
      fmt::format("way {} did not run as {}, but:{}", way.name, fmt::join(way.routes, " or "), taken));
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
