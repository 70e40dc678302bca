// Standard: what the covering designs hold.
#include <fmt/format.h>

#include "suites/codes.hpp"
#include "suites/s_sweep/cases.hpp"

namespace suites::s_sweep_cases {

namespace {

using harness::Case;
using harness::Context;
using harness::Json;

Json figures(const Design& design, const std::vector<std::string>& exclusions) {
  Json axes = Json::object(), impossible = Json::array();
  for (const Axis& axis : design.axes) axes[axis.name] = axis.values;
  for (const Pair& p : design.impossible) {
    impossible.push_back(fmt::format("{}={} with {}={}", design.axes[p.first].name, design.axes[p.first].values[p.a],
                                     design.axes[p.second].name, design.axes[p.second].values[p.b]));
  }
  std::size_t product = 1;
  for (const Axis& axis : design.axes) product *= axis.values.size();
  return {{"axes", axes},
          {"points", design.points.size()},
          {"full_product", product},
          {"pairs_held", design.held(design.points)},
          {"pairs_excluded", design.excluded},
          {"excluded", exclusions},
          {"pairs_impossible", impossible}};
}

// Counted anew from the points, so that a hole in the design would show.
void coverage(Context& context, const Subject& subject) {
  const nsa::Geometry geometry = subject.config(context).model.nsa;
  const std::vector<double> scales = context.settings().reals("s_sweep.standard_scales");
  struct Named {
    const char* name;
    Design design;
    std::vector<std::string> exclusions;
  };
  for (const auto& [name, design, exclusions] : {Named{"ops", op_design(geometry, scales), op_exclusions()},
                                                 Named{"model", model_design(geometry, scales), model_exclusions()}}) {
    std::size_t all = 0;
    for (std::size_t i = 0; i < design.axes.size(); ++i) {
      for (std::size_t j = i + 1; j < design.axes.size(); ++j) {
        all += design.axes[i].values.size() * design.axes[j].values.size();
      }
    }
    context.fact(name, figures(design, exclusions));
    context.metric(std::string(name) + "_points", static_cast<double>(design.points.size()), "points");
    context.expect_equal(fmt::format("{}: every pair of values is held by a point, or excluded", name),
                         design.held(design.points) + design.excluded + design.impossible.size(), all,
                         codes::kSweepHole);
  }
}

}  // namespace

Cases plan_coverage(const Plan& plan) {
  Case c;
  c.name = "coverage";
  c.level = harness::Level::standard;
  c.brought_by = {"s_sweep.standard_scales"};
  c.run = [subject = plan.subject](Context& context) { coverage(context, subject); };
  return {c};
}

}  // namespace suites::s_sweep_cases
