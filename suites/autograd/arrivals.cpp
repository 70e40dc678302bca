// How often does each parameter's gradient arrive? Once a backward pass, whatever computes it: data parallelism counts
// on that, and a second arrival means that something was differentiated twice.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <mutex>

#include "suites/autograd/cases.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr int kBatches = 3;  // accumulated

// Counts what reaches each parameter. The hooks stay with the parameters; a count that is gone takes no more.
class ArrivalCount {
 public:
  explicit ArrivalCount(const nsa::LanguageModelImpl& model) {
    for (const auto& item : model.named_parameters()) {
      state_->counts[item.key()] = 0;
      item.value().register_hook([state = state_, name = item.key()](const at::Tensor&) {
        const std::lock_guard lock(state->mutex);  // a GPU's gradients arrive on another thread
        ++state->counts[name];
      });
    }
  }
  [[nodiscard]] const std::map<std::string, int>& counts() const { return state_->counts; }

 private:
  struct State {
    std::mutex mutex;
    std::map<std::string, int> counts;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

void report(Context& context, const Step& step, const ArrivalCount& arrived, const std::string& way) {
  Json wrong = Json::object();
  std::string first;
  for (const auto& [name, times] : arrived.counts()) {
    const int wanted = gradient_is_cut(name, step.model().runtime->flags) ? 0 : kBatches;
    if (times == wanted) continue;
    if (wrong.empty()) first = fmt::format("{} gradients of {} arrived, {} were due", times, name, wanted);
    wrong[name] = times;
  }
  context.metric("parameters counted", static_cast<double>(arrived.counts().size()), "1");
  context.expect("every gradient arrives once a backward pass", wrong.empty(),
                 fmt::format("in {} backward passes {}; {} parameters in all", kBatches, first, wrong.size()),
                 codes::kGradientArrivals, {{"arrivals", wrong}, {"backward_passes", kBatches}, {"way", way}});
}

}  // namespace

void arrivals(Context& context, const Subject& subject, const StepOptions& options) {
  const Step step = make_step(context, subject, options);
  const ArrivalCount arrived(step.model());
  const at::AutoGradMode grad(true);
  try {
    for (int batch = 0; batch < kBatches; ++batch) {
      context.phase(fmt::format("backward pass {}", batch + 1));
      step.model().loss(step.tokens).backward();
    }
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error);
    return;
  }
  report(context, step, arrived, options.way);
  require_route(step.instance, model_way(options.way));
}

}  // namespace suites::autograd_cases
