// Case captured_step: on a GPU a training step is captured once as a CUDA graph and then replayed. A replay runs
// none of the host's code: a tensor that moved, a number that was read at the capture, a kernel that is chosen
// otherwise while the stream is captured show there and nowhere else. So it is held against the ordinary step,
// whole and in a stop.
#include "suites/training/captured_step.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nsa/train/graph_step.hpp"
#include "suites/codes.hpp"
#include "suites/probes/fixed_order.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/repetition.hpp"
#include "suites/training/stops.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;
using nsa::CudaGraph;
using nsa::train::GraphStep;
using nsa::train::StepReport;
using nsa::train::Stop;
using nsa::train::Trainer;
using nsa::train::TrainState;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

Json captured_alone() { return {{"captured", "alone"}}; }  // evidence of what no ordinary step shows

bool is_finite(const StepReport& step) { return std::isfinite(step.loss) && std::isfinite(step.grad_norm); }

struct Made {
  std::vector<StepReport> steps;
  std::vector<std::string> updated;  // parameters that a stopped step has changed
  std::int64_t replays = 0;
  std::string why_not_captured;
  TrainState end;
};

Trainer trainer_of(const RunPlan& plan, nsa::LanguageModel model, CudaGraph use) {
  nsa::TrainConfig config = plan.config.train;
  config.cuda_graph = use;
  return Trainer(std::move(model), config, open_data(plan));
}

Instance instance_of(const Subject& subject, const CapturedTrial& trial, CudaGraph use) {
  Instance instance = make_model(subject, trial.plan);
  if (trial.disturb) trial.disturb(*instance.model, use);
  return instance;
}

// `use` is `off`, or what is captured: `automatic` on a GPU, so that a refusal is told and not thrown.
CudaGraph captured_on(const RunPlan& plan) { return plan.device.is_cuda() ? CudaGraph::automatic : CudaGraph::on; }

Made run(const Subject& subject, const CapturedTrial& trial, CudaGraph use, Context& context) {
  context.phase(use == CudaGraph::off ? "ordinary steps" : "captured steps");
  Instance instance = instance_of(subject, trial, use);
  Trainer trainer = trainer_of(trial.plan, instance.model, use);
  Made made;
  const std::int64_t steps = trial.plan.config.train.steps;
  for (std::int64_t i = 0; i < steps; ++i) {
    // One step ahead, as nsa-train makes them.
    made.steps.push_back(trainer.step(/*goes_on=*/use != CudaGraph::off && i + 1 < steps));
    context.progress();
    if (!went_on(made.steps.back())) break;
  }
  made.replays = trainer.graph_replays();
  made.why_not_captured = trainer.why_not_captured();
  if (went_on(made.steps.back())) made.end = trainer.state();
  return made;
}

Json row(const StepReport& step) {
  return {{"step", step.step},
          {"loss", reports::number(step.loss)},
          {"lr", step.lr},
          {"grad_norm", reports::number(step.grad_norm)},
          {"tokens", step.tokens},
          {"stop", nsa::train::to_string(step.stop)},
          {"replayed", step.replayed}};
}

// ||a - b|| / ||a||, infinite when it is no number.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = a.to(at::kDouble);
  const double value = ((wide - b.to(at::kDouble)).norm() / wide.norm().clamp_min(1e-30)).item<double>();
  return std::isfinite(value) ? value : kInfinity;
}

struct Apart {
  std::string tensor;
  double by = 0;
};
// Weights and moments that differ, the farthest first.
std::vector<Apart> apart(const TrainState& ordinary, const TrainState& captured) {
  std::vector<Apart> found;
  for (const char* part : {"model/", "optimizer/"})
    for (const std::string& name : differences(ordinary, captured, part)) {
      const auto a = ordinary.tensors.find(name), b = captured.tensors.find(name);
      const bool both =
          a != ordinary.tensors.end() && b != captured.tensors.end() && a->second.sizes() == b->second.sizes();
      found.push_back({name, both ? distance(a->second, b->second) : kInfinity});
    }
  std::stable_sort(found.begin(), found.end(), [](const Apart& a, const Apart& b) { return a.by > b.by; });
  return found;
}

// By how much a captured run may differ from an ordinary one.
struct Allowed {
  double figures = 0, tensors = 0;
};
// Nothing. Only where the two do differ, an ordinary run is made once more, and ten times what it differs by from
// itself is plenty.
Allowed allowed_between(const Made& ordinary, const Made& captured, const std::function<Made()>& ordinary_again,
                        Context& context) {
  if (spread(ordinary.steps, captured.steps, 0) == 0 && apart(ordinary.end, captured.end).empty()) return {};
  const Made again = ordinary_again();
  const std::vector<Apart> tensors = apart(ordinary.end, again.end);
  const double figures = spread(ordinary.steps, again.steps, 0), farthest = tensors.empty() ? 0 : tensors.front().by;
  context.fact("an_ordinary_run_differs_from_itself_by",
               {{"figures", reports::number(figures)}, {"tensors", reports::number(farthest)}});
  return {10 * figures, 10 * farthest};
}

Json to_json(const std::vector<Apart>& tensors) {
  Json table = Json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(tensors.size(), 10); ++i)
    table.push_back({{"tensor", tensors[i].tensor}, {"differs_by", reports::number(tensors[i].by)}});
  return table;
}

// The first step in which the two part, in words; "" when they do not, within `allowed`.
std::string first_parting(const Made& ordinary, const Made& captured, double allowed) {
  for (std::size_t i = 0; i < std::min(ordinary.steps.size(), captured.steps.size()); ++i) {
    const StepReport &a = ordinary.steps[i], &b = captured.steps[i];
    if (a.stop == b.stop && spread({a}, {b}, 0) <= allowed) continue;
    return fmt::format(
        "step {} ({}): loss {:.9g}, gradient norm {:.9g}, rate {:.6g}, {}; made one operation after "
        "another: loss {:.9g}, gradient norm {:.9g}, rate {:.6g}, {}",
        b.step, b.replayed ? "a replay" : "of the warm-up", b.loss, b.grad_norm, b.lr,
        b.stop == Stop::none ? "made" : nsa::train::to_string(b.stop), a.loss, a.grad_norm, a.lr,
        a.stop == Stop::none ? "made" : nsa::train::to_string(a.stop));
  }
  return "";
}

void compare(const Made& ordinary, const Made& captured, const Allowed& allowed, Context& context) {
  const std::vector<Apart> tensors = apart(ordinary.end, captured.end);
  const double farthest = tensors.empty() ? 0 : tensors.front().by;
  const std::string parting = first_parting(ordinary, captured, allowed.figures);
  Json evidence = {{"ordinary", Json::array()},
                   {"captured", Json::array()},
                   {"tensors_that_differ", tensors.size()},
                   {"farthest", to_json(tensors)},
                   {"allowed_of_figures", allowed.figures},
                   {"allowed_of_tensors", allowed.tensors}};
  for (const StepReport& step : ordinary.steps) evidence["ordinary"].push_back(row(step));
  for (const StepReport& step : captured.steps) evidence["captured"].push_back(row(step));
  context.fact("steps", evidence);
  context.expect("losses, gradient norms and rates of captured steps", parting.empty(), parting, codes::kCapturedStep,
                 evidence);
  context.expect("weights and moments after captured steps", farthest <= allowed.tensors,
                 tensors.empty() ? ""
                                 : fmt::format("after {} steps {} tensors differ, {} the most: by {:.3g} of its norm "
                                               "(allowed: {:.3g})",
                                               captured.steps.size(), tensors.size(), tensors.front().tensor, farthest,
                                               allowed.tensors),
                 codes::kCapturedStep, evidence);
}

// Whether the captured run was one: nothing can be said of replays that were not made.
bool was_captured(const Made& captured, std::int64_t wanted, const RunPlan& plan, Context& context) {
  if (!captured.why_not_captured.empty()) {
    context.finding(codes::kNotCaptured, captured.why_not_captured, {{"reason", captured.why_not_captured}});
    return false;
  }
  return context.expect_equal("replays", captured.replays, plan.device.is_cuda() ? wanted : 0, codes::kCapturedStep);
}

}  // namespace

void judge_captured_steps(const Subject& subject, const CapturedTrial& trial, Context& context) {
  const Made ordinary = run(subject, trial, CudaGraph::off, context);
  if (!went_on(ordinary.steps.back()))
    return report_stop(ordinary.steps.back(), context, "one operation after another: ");
  const Made captured = run(subject, trial, captured_on(trial.plan), context);
  if (!went_on(captured.steps.back()))
    report_stop(captured.steps.back(), context,
                "a captured step, where the ordinary one is finite: ", captured_alone());
  else if (!was_captured(captured, trial.replays, trial.plan, context))
    return;

  const auto again = [&] { return run(subject, trial, CudaGraph::off, context); };
  compare(ordinary, captured, allowed_between(ordinary, captured, again, context), context);
}

namespace {

// Numbers on the device that are added to one gradient and to the output of attention: 0, until somebody spoils them.
// What is captured adds whatever stands there at the replay.
struct Spoilers {
  at::Tensor gradient, output;
  std::string parameter;  // whose gradient

  Spoilers(nsa::LanguageModelImpl& model, at::Device device)
      : gradient(at::zeros({}, at::TensorOptions(device).dtype(at::kFloat))), output(at::zeros_like(gradient)) {
    parameter = "norm.weight";
    model.named_parameters()[parameter].register_hook(
        [by = gradient](const at::Tensor& g) { return g + by.to(g.scalar_type()); });
    model.runtime->ops = [ops = model.runtime->ops, by = output](const nsa::Call& call) {
      nsa::Ops table = ops(call);
      table.replace(&nsa::Ops::attend, [attend = table.attend, by](const nsa::AttendArgs& args) {
        const at::Tensor o = attend(args);
        return o + by.to(o.scalar_type());
      });
      return table;
    };
  }
};

Made stopped_run(const Subject& subject, const CapturedTrial& trial, CudaGraph use, Context& context) {
  context.phase(use == CudaGraph::off ? "stops of ordinary steps" : "stops of captured steps");
  Instance instance = instance_of(subject, trial, use);
  const Spoilers spoilers(*instance.model, trial.plan.device);
  Trainer trainer = trainer_of(trial.plan, instance.model, use);
  Made made;
  const auto step = [&] {
    made.steps.push_back(trainer.step());
    context.progress();
  };
  const auto spoilt = [&](const at::Tensor& number, double value) {
    const Weights before = copy_weights(*instance.model);
    number.fill_(value);
    step();
    number.zero_();
    for (const std::string& name : changed_weights(before, *instance.model))
      made.updated.push_back(fmt::format("step {}: {}", made.steps.back().step, name));
    step();
  };
  for (std::int64_t i = 0; i <= GraphStep::kWarmUp; ++i) step();
  spoilt(spoilers.gradient, kNan);
  spoilt(spoilers.gradient, kInfinity);
  spoilt(spoilers.output, kNan);
  made.replays = trainer.graph_replays();
  made.why_not_captured = trainer.why_not_captured();
  if (went_on(made.steps.back())) made.end = trainer.state();
  return made;
}

}  // namespace

void judge_captured_stops(const Subject& subject, const CapturedTrial& trial, Context& context) {
  const Made captured = stopped_run(subject, trial, captured_on(trial.plan), context);
  if (!captured.why_not_captured.empty()) return;  // told by judge_captured_steps
  constexpr std::int64_t kSpoilt = 3;
  const auto clean = static_cast<std::size_t>(GraphStep::kWarmUp + 1);
  const Stop wanted[] = {Stop::nonfinite_gradient, Stop::nonfinite_gradient, Stop::nonfinite_loss};
  Json table = Json::array();
  for (const StepReport& step : captured.steps) table.push_back(row(step));
  bool as_wanted = was_captured(captured, 1 + 2 * kSpoilt, trial.plan, context);
  for (std::size_t i = 0; i < captured.steps.size(); ++i) {
    const StepReport& step = captured.steps[i];
    const bool spoilt = i >= clean && (i - clean) % 2 == 0;
    const Stop stop = spoilt ? wanted[(i - clean) / 2] : Stop::none;
    if (step.stop == stop && (stop != Stop::nonfinite_gradient || step.parameter == "norm.weight")) continue;
    as_wanted = false;
    // Nobody spoilt it, and it is not finite: the guard has done its work, and what it found is what is told. After a
    // stopped step that changed the weights they are what is not finite, and that step is told below.
    if (!spoilt && !is_finite(step)) {
      if (captured.updated.empty())
        report_stop(step, context, "a captured step that nobody spoilt: ", captured_alone());
      break;
    }
    context.finding(codes::kGuardMissed,
                    fmt::format("captured steps: step {} ended with '{}' ({}) instead of '{}'", step.step,
                                nsa::train::to_string(step.stop), step.anomaly, nsa::train::to_string(stop)),
                    {{"guard", "of a captured step"}, {"steps", table}});
    break;
  }
  context.expect("a stopped replay changes nothing", captured.updated.empty(),
                 fmt::format("a captured step was stopped, and {} parameters were updated all the same: {}",
                             captured.updated.size(), fmt::join(captured.updated, ", ")),
                 codes::kGuardMissed, {{"changed", captured.updated}, {"steps", table}});
  if (!as_wanted || !captured.updated.empty()) return;

  const Made ordinary = stopped_run(subject, trial, CudaGraph::off, context);
  const auto again = [&] { return stopped_run(subject, trial, CudaGraph::off, context); };
  const Allowed allowed = allowed_between(ordinary, captured, again, context);
  const std::string parting = first_parting(ordinary, captured, allowed.figures);
  const std::vector<Apart> tensors = apart(ordinary.end, captured.end);
  context.expect("a captured run goes on after a stop as an ordinary one does",
                 parting.empty() && (tensors.empty() || tensors.front().by <= allowed.tensors),
                 !parting.empty() ? parting : fmt::format("{} tensors differ at the end", tensors.size()),
                 codes::kCapturedStep, {{"captured", table}, {"farthest", to_json(tensors)}});
}

void captured_step(const Subject& subject, Context& context) {
  CapturedTrial trial{.plan = make_plan(subject, context, Data::text)};
  nsa::TrainConfig& train = trial.plan.config.train;
  std::int64_t& layers = trial.plan.config.model.n_layers;
  layers = std::min<std::int64_t>(layers, 3);  // the first, the last, one between
  if (train.cuda_graph == CudaGraph::off)
    context.skip("unsupported", "train.cuda_graph is false: this configuration trains without a captured step");
  if (const std::string reason = nsa::train::graph_refusal(train, trial.plan.flags); !reason.empty())
    context.skip("unsupported", "no step is captured here: " + reason);
  train.steps = GraphStep::kWarmUp + trial.replays;
  train.warmup_steps = train.steps;  // another rate in every step: one that was read at the capture shows
  train.stop_on_divergence = false;
  // What a run on a GPU accumulates is held against a twin (written_down).
  if (!trial.plan.device.is_cuda())
    train.accumulate_grad_batches = std::max<std::int64_t>(train.accumulate_grad_batches, 2);
  const probes::FixedOrder fixed(train.deterministic, probes::FixedOrder::Unfixed::refused);
  judge_captured_steps(subject, trial, context);

  layers = 1;
  train.seq_len = std::min<std::int64_t>(train.seq_len, 128);
  train.accumulate_grad_batches = 1;
  train.steps = 1000;  // only a schedule's length
  judge_captured_stops(subject, trial, context);
}

}  // namespace suites::training_cases
