#include "suites/throughput/training_run.hpp"

#include <fmt/format.h>

#include "suites/codes.hpp"

namespace suites::throughput_cases {

using nsa::train::StepReport;
using nsa::train::Stop;

std::string NoProgress::describe() const {
  return fmt::format("no progress: training stopped in step {} with '{}' {}", report.step,
                     nsa::train::to_string(report.stop), report.anomaly);
}

void NoProgress::tell(harness::Context& context, const std::string& what) const {
  context.finding(codes::kFarBelowGate, fmt::format("{}: {}", what, describe()),
                  {{"step", report.step}, {"anomaly", report.anomaly}});
}

Training::Training(Bench bench, harness::Context& context, const Clock& clock)
    : bench_(std::move(bench)),
      context_(context),
      stopwatch_(bench_.device, clock),
      crops_(nsa::train::read_bytes(text_file(context.settings(), bench_.config)), train().batch_size, train().seq_len,
             train().seed),
      trainer_(bench_.instance.model, train(), [this] { return crops_.next(); }) {}

const StepReport& Training::step() {
  last_ = trainer_.step();
  context_.progress();
  if (last_.stop != Stop::none) throw NoProgress{last_};
  return last_;
}

void Training::settle() {
  while (trainer_.by_graph() && bench_.device.is_cuda() && trainer_.graph_replays() == 0) (void)step();
}

std::vector<double> Training::seconds(const TimingPlan& plan) {
  settle();
  return time_repeats("training step", stopwatch_, plan, [this] { (void)step(); });
}

double Training::tokens() const {
  return static_cast<double>(train().batch_size * train().seq_len * train().accumulate_grad_batches);
}

std::string Training::way() const {
  if (trainer_.graph_replays() > 0) return "a replay of the captured step";
  const std::string& why = trainer_.why_not_captured();
  return "one operation after another" + (why.empty() ? "" : ": " + why);
}

harness::Json Training::routes() const { return nsa::rows_taken<harness::Json>(*bench_.instance.dispatcher); }

}  // namespace suites::throughput_cases
