// Standard: what the always-on watch costs in a training step.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>

#include "nsa/train/adamw.hpp"
#include "nsa/train/graph_step.hpp"
#include "suites/codes.hpp"
#include "suites/probes/finite_watch.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/s_sweep/cases.hpp"
#include "suites/s_sweep/op_content.hpp"
#include "suites/s_sweep/swept_model.hpp"

namespace suites::s_sweep_cases {

namespace {

using harness::Case;
using harness::Context;
using harness::Json;
using probes::FiniteWatch;

// Watched: every stage, every gradient of a stage and every parameter's gradient, read once a step. Counted: the
// largest value of each of them as well.
enum class Arm { plain, watched, counted };
constexpr std::array kArms = {Arm::plain, Arm::watched, Arm::counted};
std::string to_string(Arm arm) { return arm == Arm::plain ? "plain" : arm == Arm::watched ? "watched" : "counted"; }

// Steps of a model of its own, all plain or all watched: those that train, so where steps are captured (`by_graph`)
// they are replays, and the watch is part of what is captured.
class Steps {
 public:
  Steps(const Context& context, const Subject& subject, bool watched, bool by_graph)
      : config_(subject.config(context)),
        model_(swept_model(
            context, subject,
            {.layers = config_.model.n_layers, .precision = run_precision(context), .flags = subject.flags()})),
        input_(probes::text_tokens(context, config_, {config_.train.batch_size, config_.train.seq_len})),
        batches_(static_cast<std::size_t>(config_.train.accumulate_grad_batches), {input_.tokens.cpu(), {}}),
        device_(device_of(context)),
        optimizer_(*model_.instance.model, config_.train.weight_decay, config_.train.master_weights,
                   model_.model().runtime) {
    if (by_graph) graph_.emplace(model_.instance.model, config_.train, optimizer_);
    if (watched) observing_.emplace(*model_.model().runtime, watch_.observer());
    if (watched && graph_) watch_.follow(model_.model());
  }

  // Steps until one is like the next.
  void settle(Arm arm) {
    do (void)run(arm);
    while (graph_ && graph_->replays() == 0);
  }
  // Milliseconds. An arm of the watch is one of watched steps.
  double run(Arm arm) {
    synchronise();
    const auto start = std::chrono::steady_clock::now();
    if (!graph_ || graph_->replays() == 0) watch_.begin();
    if (graph_) {
      (void)graph_->run(batches_, config_.train.lr, [](std::string_view) {});
      look(arm);
    } else {
      model_.model().zero_grad();
      model_.model().loss(input_.tokens).backward();
      look(arm);
      optimizer_.clipped_step(optimizer_.gradient_norm().item<double>(), config_.train.grad_clip, config_.train.lr);
    }
    synchronise();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  [[nodiscard]] bool by_graph() const { return graph_.has_value(); }
  [[nodiscard]] const std::optional<probes::NonFinite>& found() const { return found_; }
  [[nodiscard]] const std::vector<FiniteWatch::Peak>& peaks() const { return peaks_; }
  [[nodiscard]] double largest_number() const { return largest(nsa::storage_type(precision())); }
  [[nodiscard]] Json shape() const {
    return {{"model", config_.model.name},
            {"layers", config_.model.n_layers},
            {"B", config_.train.batch_size},
            {"S", config_.train.seq_len},
            {"dtype", c10::toString(nsa::storage_type(precision()))},
            {"way", graph_ ? "replays of the captured step" : "one operation after another"}};
  }

 private:
  [[nodiscard]] nsa::Precision precision() const {
    return device_.is_cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32;
  }
  void synchronise() const {
    if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  }
  void look(Arm arm) {
    if (arm == Arm::plain) return;
    if (!graph_) watch_.look_at_gradients(model_.model());
    if (const auto found = watch_.read(input_.rows(config_.model.nsa)); found && !found_) found_ = found;
    if (arm == Arm::counted) peaks_ = watch_.peaks();
  }

  nsa::Config config_;
  SweptModel model_;
  probes::StepInput input_;
  std::vector<nsa::train::Batch> batches_;
  at::Device device_;
  nsa::train::AdamW optimizer_;
  FiniteWatch watch_;
  std::optional<probes::Observing> observing_;
  std::optional<nsa::train::GraphStep> graph_;
  std::optional<probes::NonFinite> found_;
  std::vector<FiniteWatch::Peak> peaks_;
};

// Plain ones, settled: captured if this configuration trains so and nothing in the step refuses it.
std::unique_ptr<Steps> plain_steps(const Context& context, const Subject& subject) {
  const bool by_graph =
      context.cuda() && nsa::train::goes_by_graph(subject.config(context).train, subject.flags(), device_of(context));
  auto steps = std::make_unique<Steps>(context, subject, /*watched=*/false, by_graph);
  try {
    steps->settle(Arm::plain);
  } catch (const nsa::Unsupported&) {
    if (!by_graph) throw;
    steps = std::make_unique<Steps>(context, subject, /*watched=*/false, /*by_graph=*/false);
    steps->settle(Arm::plain);
  }
  return steps;
}

// Step times of the three arms, taken in turns (forwards, then backwards), so that a drift of the machine meets all.
using Times = std::array<std::vector<double>, kArms.size()>;
Times measure(Context& context, Steps& plain, Steps& watched) {
  Times times;
  constexpr double kBudgetMs = 9000;  // a slow machine makes fewer rounds
  constexpr std::size_t kLeast = 6;
  const auto most = static_cast<std::size_t>(context.settings().integer("s_sweep.watch_rounds"));
  double spent = 0;
  for (std::size_t round = 0; round < most && (round < kLeast || spent < kBudgetMs); ++round) {
    context.phase(fmt::format("round {}", round + 1));
    for (std::size_t k = 0; k < kArms.size(); ++k) {
      const std::size_t i = round % 2 == 0 ? k : kArms.size() - 1 - k;
      times[i].push_back((kArms[i] == Arm::plain ? plain : watched).run(kArms[i]));
      spent += times[i].back();
    }
  }
  return times;
}

// How near the stages come to the end of their dtype: the largest |x| of each kind of stage over the layers.
Json headroom(const Steps& step) {
  std::map<std::string, double> tops;
  for (const FiniteWatch::Peak& peak : step.peaks()) {
    const probes::Stage stage = probes::parse_stage(peak.name);
    std::string kind = peak.name;
    if (stage.layer >= 0) {
      const std::string prefix = fmt::format("layers.{}", stage.layer);
      kind = "layer" + peak.name.substr(prefix.size());
    }
    const std::string key = (peak.parameter ? "parameter gradient, " : peak.backward ? "gradient of " : "") + kind;
    double& top = tops[key];
    if (std::isnan(peak.largest) || peak.largest > top) top = peak.largest;  // a NaN stays
  }
  Json rows = Json::array();
  for (const auto& [kind, value] : tops) {
    rows.push_back({{"stage", kind},
                    {"largest", reports::number(value)},
                    {"headroom_bits", reports::number(std::log2(step.largest_number() / value))}});
  }
  return rows;
}

// On a GPU the whole interval must lie above what is allowed; on a CPU it is only told.
void judge(Context& context, const Times& times, const Json& shape) {
  const double plain = probes::median(times[0]);
  context.metric("step_plain_ms", plain, "ms");
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const std::string name = to_string(kArms[i]);
    const double median = probes::median(times[i]);
    const probes::Interval ratio = probes::bootstrap_ratio(times[i], times[0]);
    const double percent = 100 * (median / plain - 1);
    context.metric("step_" + name + "_ms", median, "ms");
    context.metric(name + "_overhead_percent", percent, "%");
    const Json evidence = {{"step", shape},
                           {"plain_ms", plain},
                           {name + "_ms", median},
                           {"overhead_percent", percent},
                           {"interval_percent", {100 * (ratio.low - 1), 100 * (ratio.high - 1)}},
                           {"rounds", times[i].size()}};
    context.fact(name, evidence);
    if (!context.cuda() || kArms[i] != Arm::watched) continue;
    context.expect_at_most("the watch's share of a training step", 100 * (ratio.low - 1),
                           context.settings().real("s_sweep.watch_percent"), "%", codes::kWatchOverhead, evidence);
  }
}

void watch_overhead(Context& context, const Subject& subject) {
  context.phase("warm-up of plain steps");
  const std::unique_ptr<Steps> plain = plain_steps(context, subject);
  context.phase("warm-up of watched steps");
  Steps watched(context, subject, /*watched=*/true, plain->by_graph());
  watched.settle(Arm::counted);
  const Times times = measure(context, *plain, watched);
  judge(context, times, watched.shape());
  context.fact("headroom", headroom(watched));
  const std::string what = watched.found() ? watched.found()->describe() : "";
  context.expect("the watch is silent on training steps", !watched.found(), what,
                 watched.found() ? code_of(*watched.found()) : codes::kNonFiniteForward,
                 watched.found() ? watched.found()->evidence() : Json::object());
}

}  // namespace

Cases plan_watch(const Plan& plan) {
  Case c;
  c.name = "watch_overhead";
  c.level = harness::Level::standard;
  c.brought_by = {"s_sweep.watch_rounds", "s_sweep.watch_percent"};
  c.run = [subject = plan.subject](Context& context) { watch_overhead(context, subject); };
  return {c};
}

}  // namespace suites::s_sweep_cases
