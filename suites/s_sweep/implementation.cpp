// An implementation that is not ours: each function that it claims over every length at which a block begins or ends,
// and the lengths of training, with every dtype and layout that it claims and contents that break kernels.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "suites/implementation/client.hpp"
#include "suites/probes/lengths.hpp"
#include "suites/s_sweep/cases.hpp"
#include "suites/s_sweep/op_point.hpp"
#include "suites/s_sweep/sweep_log.hpp"

namespace suites::s_sweep_cases {

namespace {

using harness::Case;
using harness::Context;
using implementation::Description;
using nsa::Op;

constexpr std::array kShownContents = {Content::normal, Content::ties, Content::zero_keys, Content::steep_logits};
constexpr std::array<std::pair<const char*, at::ScalarType>, 3> kTypes = {
    {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}};
enum ForeignAxis : std::size_t { kForeignLength, kForeignDtype, kForeignLayout, kForeignContent };

std::vector<std::int64_t> lengths_of(const Context& context, const nsa::Geometry& geometry) {
  const std::vector<std::int64_t> edges = boundary_lengths(geometry, {});
  std::set<std::int64_t> all(edges.begin(), edges.end());
  for (const std::int64_t S : context.settings().integers("s_sweep.lengths")) all.insert({S - 1, S, S + 1});
  all.erase(all.begin(), all.lower_bound(1));
  return {all.begin(), all.end()};
}

Design design_of(const Context& context, const Description& d, const nsa::Geometry& geometry, Op op) {
  const auto claimed = [](const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  Axis length{"S", {}}, dtype{"dtype", {}}, layout{"layout", {}}, content{"content", {}};
  for (const std::int64_t S : lengths_of(context, geometry)) length.values.push_back(std::to_string(S));
  for (const auto& [name, type] : kTypes)
    if (claimed(d.dtypes, name)) dtype.values.emplace_back(name);
  if (dtype.values.empty()) context.skip("not_applicable", "it takes none of fp32, bf16, fp16");
  if (claimed(d.layouts, "batched") || op == Op::combine)
    layout.values = {std::string(to_string(Layout::single)), std::string(to_string(Layout::batch))};
  if (claimed(d.layouts, "packed") && op != Op::combine) layout.values.emplace_back(to_string(Layout::packed));
  for (const Content c : kShownContents)
    if (suits(c, op)) content.values.emplace_back(to_string(c));
  return {{length, dtype, layout, content}, [](const Pair&) { return true; }};
}

OpPoint point_of(const Design& design, const Point& point, const oracle::OpShape& shape, Op op) {
  const auto value = [&](ForeignAxis axis) { return design.axes[axis].values[point[axis]]; };
  OpPoint at{kImplementation, {}};
  at.input.op = op;
  at.input.geometry = shape.geometry;
  at.input.Hq = shape.Hq;
  at.input.G = shape.G;
  at.input.Dk = shape.Dk;
  at.input.Dv = shape.Dv;
  at.input.own_block = shape.own_block;
  at.input.empty_documents = shape.empty_documents;
  at.input.attention = shape.attention;
  at.input.S = std::stoll(value(kForeignLength));
  at.input.dtype = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) {
                     return t.first == value(kForeignDtype);
                   })->second;
  at.input.layout =
      *std::find_if(kLayouts.begin(), kLayouts.end(), [&](Layout l) { return to_string(l) == value(kForeignLayout); });
  at.input.content = *std::find_if(kContents.begin(), kContents.end(),
                                   [&](Content c) { return to_string(c) == value(kForeignContent); });
  return at;
}

void sweep(Context& context, const Subject& subject, Op op, bool attention) {
  const Description& d = subject.implementation()->describe();
  if (!d.claims(op)) context.skip("not_applicable", fmt::format("{} does not claim {}", d.name, nsa::to_string(op)));
  const oracle::OpShape own = oracle::parity_shape(subject.config(context).model.nsa);
  const oracle::OpShape shape =
      shape_for(subject, way_named(kImplementation), attention ? oracle::as_attention(own) : own);
  const Design design = design_of(context, d, shape.geometry, op);
  SweepLog log(context, design);
  int number = 0, served = 0;
  std::string refused;
  for (const Point& point : design.points) {
    log.begin(point);
    try {
      log.add(point, diagnose_op(subject, point_of(design, point, shape, op),
                                 {device_of(context), context.seed("inputs", ++number), !log.full()}));
      ++served;
    } catch (const harness::Skipped& not_claimed) {  // a length that its limits leave out
      refused = not_claimed.reason;
    } catch (const implementation::ImplementationError& error) {
      if (error.kind != "unsupported") throw;
      refused = error.message;
    }
  }
  context.metric("points", static_cast<double>(design.points.size()), "1");
  context.metric("points that it serves", served, "1");
  if (served == 0) context.skip("not_applicable", refused);
  log.finish();
}

}  // namespace

Cases plan_implementation(const Plan& plan) {
  Cases cases;
  const auto add = [&](const std::string& name, Op op, bool attention) {
    Case c;
    c.name = "implementation";
    c.params.set("op", name);
    c.timeout = std::chrono::seconds(900);
    c.run = [subject = plan.subject, op, attention](Context& context) { sweep(context, subject, op, attention); };
    cases.push_back(std::move(c));
  };
  for (const Op op : nsa::kAllOps) add(std::string(nsa::to_string(op)), op, false);
  add("attention", Op::attend, true);
  return cases;
}

}  // namespace suites::s_sweep_cases
