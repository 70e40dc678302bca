// Standard: what the always-on watch costs in a training step.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <array>
#include <chrono>
#include <cmath>
#include <map>

#include "nsa/train/adamw.hpp"
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

// One training step as it is, or with the watch.
class Step {
 public:
  Step(const Context& context, const Subject& subject)
      : config_(subject.config(context)),
        model_(swept_model(
            context, subject,
            {.layers = config_.model.n_layers, .precision = run_precision(context), .flags = subject.flags()})),
        input_(probes::text_tokens(context, config_, {config_.train.batch_size, config_.train.seq_len})),
        device_(device_of(context)),
        optimizer_(*model_.instance.model, config_.train.weight_decay) {}

  // Milliseconds.
  double run(Arm arm) {
    synchronise();
    const auto start = std::chrono::steady_clock::now();
    nsa::LanguageModelImpl& model = model_.model();
    model.zero_grad();
    if (arm == Arm::plain) {
      model.loss(input_.tokens).backward();
    } else {
      watched_pass(model, arm);
    }
    optimizer_.step(config_.train.lr);
    synchronise();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  [[nodiscard]] const std::optional<probes::NonFinite>& found() const { return found_; }
  [[nodiscard]] const std::vector<FiniteWatch::Peak>& peaks() const { return peaks_; }
  [[nodiscard]] double largest_number() const { return largest(scalar_type(precision())); }
  [[nodiscard]] Json shape() const {
    return {{"model", config_.model.name},
            {"layers", config_.model.n_layers},
            {"B", config_.train.batch_size},
            {"S", config_.train.seq_len},
            {"dtype", c10::toString(scalar_type(precision()))}};
  }

 private:
  [[nodiscard]] nsa::Precision precision() const {
    return device_.is_cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32;
  }
  void synchronise() const {
    if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  }
  void watched_pass(nsa::LanguageModelImpl& model, Arm arm) {
    watch_.begin();
    {
      const probes::Observing observing(*model.runtime, watch_.observer());
      model.loss(input_.tokens).backward();
    }
    watch_.look_at_gradients(model);
    if (const auto found = watch_.read(input_.rows(config_.model.nsa)); found && !found_) found_ = found;
    if (arm == Arm::counted) peaks_ = watch_.peaks();
  }

  nsa::Config config_;
  SweptModel model_;
  probes::StepInput input_;
  at::Device device_;
  nsa::train::AdamW optimizer_;
  FiniteWatch watch_;
  std::optional<probes::NonFinite> found_;
  std::vector<FiniteWatch::Peak> peaks_;
};

// Step times of the three arms, taken in turns (forwards, then backwards), so that a drift of the machine meets all.
using Times = std::array<std::vector<double>, kArms.size()>;
Times measure(Context& context, Step& step) {
  Times times;
  // Warm-up. The watch looks first: after an update with a bad gradient all the weights are bad.
  for (const Arm arm : {Arm::counted, Arm::watched, Arm::plain}) (void)step.run(arm);
  constexpr double kBudgetMs = 9000;  // a slow machine makes fewer rounds
  constexpr std::size_t kLeast = 6;
  const auto most = static_cast<std::size_t>(context.settings().integer("s_sweep.watch_rounds"));
  double spent = 0;
  for (std::size_t round = 0; round < most && (round < kLeast || spent < kBudgetMs); ++round) {
    context.phase(fmt::format("round {}", round + 1));
    for (std::size_t k = 0; k < kArms.size(); ++k) {
      const std::size_t i = round % 2 == 0 ? k : kArms.size() - 1 - k;
      times[i].push_back(step.run(kArms[i]));
      spent += times[i].back();
    }
  }
  return times;
}

// How near the stages come to the end of their dtype: the largest |x| of each kind of stage over the layers.
Json headroom(const Step& step) {
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
  context.phase("build model");
  Step step(context, subject);
  context.phase("warm-up");
  const Times times = measure(context, step);
  judge(context, times, step.shape());
  context.fact("headroom", headroom(step));
  const std::string what = step.found() ? step.found()->describe() : "";
  context.expect("the watch is silent on training steps", !step.found(), what,
                 step.found() ? code_of(*step.found()) : codes::kNonFiniteForward,
                 step.found() ? step.found()->evidence() : Json::object());
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
