// Case guards: are the trainer's guards awake? The case harms a small model of its own (a NaN in one gradient, a NaN in
// one weight, a loss far too high) and puts a HALT file in the way; each must stop training before the weights are
// touched. What is planted proves something only in a model that is healthy without it, so that is looked at first.
// NSA_DETECT_ANOMALY must be in force while a step is made, and the watchdog must tell a hang from work.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "nsa/train/run/hang_judge.hpp"
#include "suites/codes.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/stops.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using nsa::train::StepReport;
using nsa::train::Stop;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr int kPoisonedStep = 1;

struct Small {
  nsa::Config config;
  Instance instance;
  RandomTokens tokens;
};

Small make_small(const Subject& subject, Context& context, int trial, std::int64_t layers = 3) {
  nsa::Config config = subject.config(context);
  config.model.n_layers = std::min<std::int64_t>(config.model.n_layers, layers);
  config.train.steps = 4;
  config.train.seq_len = std::min<std::int64_t>(config.train.seq_len, 32);
  config.train.batch_size = 2;
  config.train.accumulate_grad_batches = 1;
  config.train.cuda_graph = nsa::CudaGraph::off;  // those of a captured step: captured_step.cpp
  const std::uint64_t seed = context.seed("weights", trial);
  Instance instance = subject.model({.config = config.model,
                                     .flags = subject.flags(),
                                     .precision = config.train.precision,
                                     .device = device_of(context),
                                     .seed = seed});
  return {config, std::move(instance), RandomTokens(config.model.vocab, context.seed("tokens", trial))};
}

nsa::train::BatchSource batches(Small& small) {
  return [&small] { return small.tokens.next(small.config.train.batch_size, small.config.train.seq_len + 1); };
}

// One step that must be stopped with `wanted`, before any update.
void judge_stop(const StepReport& report, Stop wanted, const std::vector<std::string>& changed, std::size_t parameters,
                std::string_view what, Context& context) {
  context.expect(what, report.stop == wanted && changed.empty(),
                 fmt::format("{}: step {} ended with '{}' instead of '{}', and {} of {} parameters were updated", what,
                             report.step, nsa::train::to_string(report.stop), nsa::train::to_string(wanted),
                             changed.size(), parameters),
                 codes::kGuardMissed, {{"guard", what}, {"anomaly", report.anomaly}, {"changed", changed}});
}

StepReport expect_stop(nsa::train::Trainer& trainer, nsa::LanguageModelImpl& model, Stop wanted, std::string_view what,
                       Context& context) {
  const Weights before = copy_weights(model);
  const StepReport report = trainer.step();
  judge_stop(report, wanted, changed_weights(before, model), before.size(), what, context);
  context.progress();
  return report;
}

// A step of the product as it is. When that is not finite, it is the finding, and no guard is judged by what follows.
bool is_healthy(const Subject& subject, Context& context) {
  Small small = make_small(subject, context, 0);
  nsa::train::Trainer trainer(small.instance.model, small.config.train, batches(small));
  const Weights before = copy_weights(*small.instance.model);
  const StepReport report = trainer.step();
  context.progress();
  // Its guards were in earnest: they must have held here too.
  const bool kept = check_guard(report, before, *small.instance.model, context);
  if (went_on(report)) return kept;
  report_stop(report, context, "a small model with nothing planted: ");
  return false;
}

// A parameter from the middle of the model on that gets a gradient: a flag may have cut some off (NSA_FORCE_BRANCH,
// NSA_STOPGRAD_GATES), and a hook on one of those would never fire. Empty when none does, which autograd's cases tell.
std::string name_of_victim(const Subject& subject, Context& context) {
  Small small = make_small(subject, context, 0);
  const at::Tensor tokens = at::randint(0, small.config.model.vocab, {1, small.config.train.seq_len + 1}, at::kLong);
  small.instance.model->loss(tokens.to(device_of(context))).backward();
  const auto named = small.instance.model->named_parameters();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto& item = named[(named.size() / 2 + i) % named.size()];
    if (item.value().grad().defined()) return item.key();
  }
  return "";
}

void bad_number_in_one_gradient(const Subject& subject, Context& context, double planted) {
  const std::string number = std::isnan(planted) ? "NaN" : "infinity",
                    what = std::isnan(planted) ? "nan_in_one_gradient" : "infinity_in_one_gradient";
  const std::string name = name_of_victim(subject, context);
  if (name.empty()) return context.fact(what, "not tried: no parameter gets a gradient");
  Small small = make_small(subject, context, 0);
  const at::Tensor victim = small.instance.model->named_parameters()[name];  // of the list that is made for us
  int backward_passes = 0;
  const unsigned hook = victim.register_hook([&backward_passes, planted](const at::Tensor& gradient) {
    if (backward_passes++ != kPoisonedStep) return gradient;
    at::Tensor poisoned = gradient.clone();
    poisoned.flatten()[0] = planted;
    return poisoned;
  });
  nsa::train::Trainer trainer(small.instance.model, small.config.train, batches(small));
  (void)trainer.step();  // step 0 is clean
  const Weights before = copy_weights(*small.instance.model);
  const StepReport report = trainer.step();
  victim.remove_hook(hook);
  context.progress();
  // Nothing was planted: that is no guard's doing.
  if (backward_passes <= kPoisonedStep)
    throw std::logic_error(
        fmt::format("the {} never reached the gradient of {}: its hook ran {} time(s)", number, name, backward_passes));
  judge_stop(report, Stop::nonfinite_gradient, changed_weights(before, *small.instance.model), before.size(), what,
             context);
  context.expect(
      "names_the_parameter", report.anomaly.find(name) != std::string::npos,
      fmt::format("{} was put into the gradient of {}, but the trainer named '{}'", number, name, report.anomaly),
      codes::kGuardMissed, {{"parameter", name}, {"named", report.anomaly}});
}

// NSA_DETECT_ANOMALY: autograd's own mode, over the whole of a step. Without it in the forward pass nobody learns where
// the function stood that gave NaN, without it in the backward pass nobody learns that one did.
void detect_anomaly(const Subject& subject, Context& context) {
  // One layer: in this mode a stack is taken for every node of the graph.
  Small small = make_small(subject, context, 0, /*layers=*/1);
  nsa::LanguageModelImpl& model = *small.instance.model;
  const char* const name = "head.weight";
  model.runtime->flags.detect_anomaly = true;
  bool forward = true, backward = true;
  int seen_forward = 0, seen_backward = 0;
  model.runtime->observe = [&](std::string_view, const at::Tensor&) {
    ++seen_forward;
    forward = forward && torch::autograd::AnomalyMode::is_enabled();
  };
  const unsigned hook = model.named_parameters()[name].register_hook([&](const at::Tensor& gradient) {
    ++seen_backward;
    backward = backward && torch::autograd::AnomalyMode::is_enabled();
    return gradient;
  });
  nsa::train::Trainer trainer(small.instance.model, small.config.train, batches(small));
  (void)trainer.step();
  model.named_parameters()[name].remove_hook(hook);
  model.runtime->observe = nullptr;
  context.progress();
  if (seen_forward == 0) throw std::logic_error("the forward pass of the step was not seen");
  if (seen_backward == 0) return context.fact("detect_anomaly", "not tried: head.weight gets no gradient");
  const bool after = torch::autograd::AnomalyMode::is_enabled();
  context.expect("detect_anomaly_covers_the_step", forward && backward && !after,
                 fmt::format("with NSA_DETECT_ANOMALY=1 autograd's anomaly mode is {} in the forward pass, {} in the "
                             "backward pass and {} after the step",
                             forward ? "on" : "off", backward ? "on" : "off", after ? "on" : "off"),
                 codes::kFlagIgnored,
                 {{"flag", "NSA_DETECT_ANOMALY"}, {"forward", forward}, {"backward", backward}, {"after", after}});
}

void nan_in_the_loss(const Subject& subject, Context& context) {
  Small small = make_small(subject, context, 1);
  {
    const at::NoGradGuard no_grad;
    small.instance.model->head->weight.flatten()[0] = kNotANumber;
  }
  nsa::train::Trainer trainer(small.instance.model, small.config.train, batches(small));
  (void)expect_stop(trainer, *small.instance.model, Stop::nonfinite_loss, "nan_in_the_loss", context);
}

// A step needs all of its batches: at the end of the data one that finds too few is not made.
void end_of_data(const Subject& subject, Context& context) {
  Small small = make_small(subject, context, 4);
  small.config.train.accumulate_grad_batches = 2;
  int left = 3;
  nsa::train::Trainer trainer(small.instance.model, small.config.train, [&] {
    return left-- > 0 ? small.tokens.next(small.config.train.batch_size, small.config.train.seq_len + 1) : at::Tensor();
  });
  const StepReport whole = trainer.step();
  context.progress();
  if (!went_on(whole)) return report_stop(whole, context, "the first of two steps, with all of its batches: ");
  (void)expect_stop(trainer, *small.instance.model, Stop::end_of_data, "end of the data in the middle of a step",
                    context);
}

void halt_file(const Subject& subject, Context& context) {
  Small small = make_small(subject, context, 2);
  const std::filesystem::path file = context.run_folder() / fmt::format("guard-self-check-{}.HALT", ::getpid());
  std::ofstream stream(file);
  stream << "written by the case guards to see that training stops\n";
  stream.close();
  if (!stream) throw std::runtime_error(file.string() + " could not be written");
  nsa::train::Trainer trainer(small.instance.model, small.config.train, batches(small), file);
  (void)expect_stop(trainer, *small.instance.model, Stop::halted, "halt_file", context);
  std::filesystem::remove(file);
}

// What the watchdog of nsa-train calls hung, told to its judge second by second: only silence without work, or
// a silence that no work explains. A step that works on is slow, and a run that goes on is no hang, however
// little it computes.
void hang(Context& context) {
  using nsa::train::HangJudge;
  using nsa::train::Liveness;
  constexpr double kLimit_s = 20;
  constexpr int kLastSign_s = 3;  // of those that stop: they went on up to here
  struct Trial {
    const char* what;
    bool works, progresses;
    double hung_after_s;  // 0: never
  };
  for (const Trial& trial :
       {Trial{"works and tells nothing more", true, false, kLastSign_s + HangJudge::kBusyFactor * kLimit_s},
        Trial{"goes on and hardly works", false, true, 0}, Trial{"works and goes on", true, true, 0},
        Trial{"neither works nor goes on any more", false, false, kLastSign_s + kLimit_s}}) {
    HangJudge judge(kLimit_s);
    double hung = 0;
    for (int now = 0; now <= 2 * HangJudge::kBusyFactor * kLimit_s && hung == 0; ++now) {
      nsa::train::Activity::Snapshot seen;
      seen.progress = static_cast<std::uint64_t>(trial.progresses ? now : std::min(now, kLastSign_s));
      const double cpu_s = trial.works ? now : trial.progresses ? 0 : std::min(now, kLastSign_s);
      if (judge.look(now, cpu_s, seen) == Liveness::hung) hung = now;
    }
    // CPU time is looked at every tenth of the limit.
    const bool right = trial.hung_after_s == 0 ? hung == 0 : std::abs(hung - trial.hung_after_s) <= kLimit_s / 5;
    context.expect(
        fmt::format("hang: a run that {}", trial.what), right,
        fmt::format("a run that {} is hung after {} s, where {} (train.hang_timeout_s = {})", trial.what, hung,
                    trial.hung_after_s == 0 ? "never is right" : fmt::format("{} s are right", trial.hung_after_s),
                    kLimit_s),
        codes::kGuardMissed,
        {{"guard", fmt::format("hang (a run that {})", trial.what)},
         {"hung_after_s", hung},
         {"allowed_s", trial.hung_after_s}});
  }
}

// A model that is thrown far off and stays there: its head is many times too large, so that its loss is far above that
// of a model that knows nothing. The trainer must not go on with it, and must not stop at once either.
void divergence(const Subject& subject, Context& context) {
  Small small = make_small(subject, context, 3);
  small.config.train.master_weights = false;  // otherwise they would undo the harm
  small.config.train.stop_on_divergence = true;
  nsa::train::Trainer trainer(small.instance.model, small.config.train, batches(small));
  (void)trainer.step();  // step 0 is clean
  {
    const at::NoGradGuard no_grad;
    small.instance.model->head->weight.mul_(64);
  }
  std::size_t made = 0;
  for (; made < nsa::train::DivergenceGuard::kAbove; ++made) {
    if (trainer.step().stop != Stop::none) break;
    context.progress();
  }
  context.expect("divergence_is_no_spike", made == nsa::train::DivergenceGuard::kAbove,
                 fmt::format("the trainer stopped after {} steps of a high loss; {} make a divergence", made,
                             nsa::train::DivergenceGuard::kAbove),
                 codes::kGuardMissed, {{"guard", "divergence"}, {"steps", made}});
  (void)expect_stop(trainer, *small.instance.model, Stop::diverged, "divergence", context);
}

}  // namespace

void guards(const Subject& subject, Context& context) {
  const probes::ThreadsFor threads(subject.config(context).model.dim, context.cuda());
  context.phase("nothing planted");
  if (!is_healthy(subject, context)) return;
  context.phase("NaN in one gradient");
  bad_number_in_one_gradient(subject, context, kNotANumber);
  context.phase("infinity in one gradient");
  bad_number_in_one_gradient(subject, context, std::numeric_limits<double>::infinity());
  context.phase("NSA_DETECT_ANOMALY");
  detect_anomaly(subject, context);
  context.phase("NaN in the loss");
  nan_in_the_loss(subject, context);
  context.phase("HALT file");
  halt_file(subject, context);
  context.phase("end of the data");
  end_of_data(subject, context);
  context.phase("hang");
  hang(context);
  context.phase("divergence");
  divergence(subject, context);
}

}  // namespace suites::training_cases
