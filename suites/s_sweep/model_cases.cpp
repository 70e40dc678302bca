// Standard: training steps of a small model over lengths, scales, dtypes, layouts and ways; and one layer at long ones.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "nsa/call.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/lengths.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/s_sweep/cases.hpp"
#include "suites/s_sweep/op_content.hpp"
#include "suites/s_sweep/sweep_log.hpp"
#include "suites/s_sweep/swept_model.hpp"
#include "suites/ways.hpp"

namespace suites::s_sweep_cases {

namespace {

using harness::Case;
using harness::Context;
using harness::Json;
using probes::Pass;

// The ways through the model: as the run's flags say, and those flags with another backend (which without our own
// kernels is sdpa already).
const std::vector<std::string>& swept_ways() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names = {"default"};
    for (const Way* way : model_ways(Way::OfModel::checked))
      if (way->name != "sdpa") names.push_back(way->name);
    return names;
  }();
  return all;
}
bool needs_cuda(const std::string& way) { return way != "default" && way_named(way).needs_cuda; }

nsa::EffectiveFlags flags_of(const Subject& subject, const std::string& way) {
  return way == "default" ? subject.flags() : way_named(way).flags(subject.flags());
}

// The subject's widths and geometry may be others than a backend serves; then the route takes another way.
void skip_unserved(const Context& context, const Subject& subject, const std::string& way) {
  if (!needs_cuda(way)) return;
  const nsa::Call call =
      nsa::call_of(subject.config(context).model, 1, 1, nsa::Precision::bf16, device_of(context), /*training=*/true);
  const std::string reason = way_named(way).refusal(call);
  if (!reason.empty()) context.skip("unsupported", fmt::format("{} does not serve this model: {}", way, reason));
}

// The axes of model_design, in order.
enum ModelAxis : std::size_t { kModelLength, kModelScale, kModelWay, kModelLayout, kModelPrecision, kModelPhi };

bool allowed(const Pair& p) {
  return p.first != kModelWay || p.second != kModelPrecision || !needs_cuda(swept_ways()[p.a]) || p.b == 1;
}

// Tokens of the layout: S of them, twice S, or documents of 0, S, 1, 0 and l+1.
probes::StepInput input_of(const Context& context, const nsa::Config& config, std::int64_t S, Layout layout) {
  if (layout != Layout::packed) {
    return probes::text_tokens(context, config, {layout == Layout::batch ? 2 : 1, S});
  }
  std::vector<std::int32_t> ends = {0};
  for (const std::int64_t length : {std::int64_t{0}, S, std::int64_t{1}, std::int64_t{0}, config.model.nsa.l + 1}) {
    ends.push_back(ends.back() + static_cast<std::int32_t>(length));
  }
  const std::int64_t total = ends.back();
  ++ends.back();  // the token that is only predicted belongs to the last document
  return {probes::text_tokens(context, config, {1, total}), at::tensor(ends, at::kInt)};
}

// The models of one way, each made when it is first needed.
class Models {
 public:
  Models(const Context& context, const Subject& subject, const std::string& way)
      : context_(context), subject_(subject), flags_(flags_of(subject, way)) {}

  SweptModel& get(nsa::Precision precision, nsa::Phi phi) {
    const auto key = std::make_pair(precision, phi);
    const auto found = made_.find(key);
    if (found != made_.end()) return found->second;
    const SweptOptions options{.precision = precision, .flags = flags_, .phi = phi};
    return made_.emplace(key, swept_model(context_, subject_, options)).first->second;
  }

 private:
  const Context& context_;
  const Subject& subject_;
  nsa::EffectiveFlags flags_;
  std::map<std::pair<nsa::Precision, nsa::Phi>, SweptModel> made_;
};

std::optional<probes::Diagnosis> try_point(SweptModel& swept, const probes::StepInput& input, double scale,
                                           bool located) {
  const ScaledLogits scaled(*swept.model().runtime, scale);
  const probes::FiniteStep step = probes::finite_step(swept.model(), input, Pass::forward_and_backward);
  if (step.finite) return std::nullopt;
  if (located) return probes::diagnose(swept.model(), input, Pass::forward_and_backward, step);
  return probes::Diagnosis{std::string(probes::code_of(*step.sighted)), step.sighted->describe(),
                           step.sighted->evidence()};
}

void sweep_models(Context& context, const Subject& subject, std::size_t way) {
  skip_unserved(context, subject, swept_ways()[way]);
  const nsa::Geometry geometry = subject.config(context).model.nsa;
  const std::vector<double> scales = context.settings().reals("s_sweep.standard_scales");
  const Design design = model_design(geometry, scales);
  Models models(context, subject, swept_ways()[way]);
  SweepLog log(context, design);
  for (const Point& point : design.points) {
    if (point[kModelWay] != way) continue;
    log.begin(point);
    SweptModel& swept = models.get(point[kModelPrecision] == 0 ? nsa::Precision::fp32 : nsa::Precision::bf16,
                                   point[kModelPhi] == 0 ? nsa::Phi::avg : nsa::Phi::mlp);
    const std::int64_t S = std::stoll(design.axes[kModelLength].values[point[kModelLength]]);
    try {
      log.add(point, try_point(swept, input_of(context, swept.config, S, kLayouts[point[kModelLayout]]),
                               scales[point[kModelScale]], !log.full()));
    } catch (const c10::Error& error) {
      probes::report_inplace_write(context, error, design.json(point));
      return;
    }
  }
  log.finish();
}

bool out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string(error.what_without_backtrace()).find("can't allocate memory") != std::string::npos;
}

void long_length(Context& context, const Subject& subject, std::int64_t S, const std::string& way) {
  skip_unserved(context, subject, way);
  context.phase("build model");
  const SweptOptions options{.layers = 1, .precision = run_precision(context), .flags = flags_of(subject, way)};
  SweptModel swept = swept_model(context, subject, options);
  const Json evidence = {{"S", S}, {"way", way}, {"layers", 1}};
  context.phase(fmt::format("forward and backward S={}", S));
  try {
    probes::expect_finite_step(context, "loss and every gradient are finite", swept.model(),
                               probes::text_tokens(context, swept.config, {1, S}), Pass::forward_and_backward,
                               evidence);
  } catch (const c10::Error& error) {
    if (!out_of_memory(error)) throw;
    Json details = evidence;
    details["error"] = std::string(error.what_without_backtrace()).substr(0, 400);
    details["routes"] = nsa::rows_taken<Json>(*swept.instance.dispatcher);
    context.expect("the length fits into memory", false, fmt::format("S = {} does not fit into memory", S),
                   codes::kLengthOutOfMemory, details);
  }
}

Case standard_case(const std::string& name) {
  Case c;
  c.name = name;
  c.level = harness::Level::standard;
  return c;
}

}  // namespace

Design model_design(const nsa::Geometry& geometry, const std::vector<double>& scales) {
  Axis length{"S", {}}, scale{"scale", {}}, layout{"layout", {}};
  for (const std::int64_t S : standard_lengths(geometry)) length.values.push_back(std::to_string(S));
  for (const double s : scales) scale.values.push_back(fmt::format("{:g}", s));
  for (const Layout l : kLayouts) layout.values.emplace_back(to_string(l));
  return {{length, scale, {"way", swept_ways()}, layout, {"dtype", {"fp32", "bf16"}}, {"phi", {"avg", "mlp"}}},
          allowed};
}

const std::vector<std::string>& model_exclusions() {
  static const std::vector<std::string> all = {
      "FlashAttention-2 and our own kernels with fp32: the route takes another way"};
  return all;
}

Cases plan_models(const Plan& plan) {
  Cases cases;
  for (std::size_t way = 0; way < swept_ways().size(); ++way) {
    Case c = standard_case("model");
    c.params.set("way", swept_ways()[way]);
    c.needs_cuda = needs_cuda(swept_ways()[way]);
    c.brought_by = {"s_sweep.standard_scales"};
    c.run = [subject = plan.subject, way](Context& context) { sweep_models(context, subject, way); };
    cases.push_back(std::move(c));
  }
  return cases;
}

Cases plan_long(const Plan& plan) {
  const std::int64_t longest_on_cpu = plan.settings.integer("s_sweep.longest_on_cpu");
  const std::string& origin = plan.settings.values().at("s_sweep.long_lengths").origin;
  const bool named_on_cpu = origin != "default" && plan.settings.text("run.device") == "cpu";
  Cases cases;
  for (const std::int64_t S : plan.settings.integers("s_sweep.long_lengths")) {
    // Left out in silence, a length that a user names would count as looked at.
    if (named_on_cpu && S > longest_on_cpu)
      throw harness::UsageError(
          fmt::format("{}: s_sweep.long_lengths: {} is above s_sweep.longest_on_cpu ({}), and there is no GPU here; "
                      "allowed: lengths up to it, or a larger s_sweep.longest_on_cpu",
                      origin, S, longest_on_cpu));
    for (const std::string& way : swept_ways()) {
      if (way != "default" && !needs_cuda(way)) continue;  // slow ways have no long lengths
      Case c = standard_case("long");
      c.params.set("S", std::to_string(S));
      c.params.set("way", way);
      c.needs_cuda = needs_cuda(way) || S > longest_on_cpu;
      c.brought_by = {"s_sweep.long_lengths", "s_sweep.longest_on_cpu"};
      c.run = [subject = plan.subject, S, way](Context& context) { long_length(context, subject, S, way); };
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

}  // namespace suites::s_sweep_cases
