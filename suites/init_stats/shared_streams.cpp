#include <ATen/ATen.h>
#include <fmt/format.h>

#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/init_stats/law.hpp"
#include "suites/init_stats/sign_runs.hpp"

namespace suites::init_checks {

void shared_streams(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  init_laws::SignRuns runs;
  context.phase("signs");
  for (const auto& e : init_laws::expected_parameters(options.config)) {
    const at::Tensor* found = parameters.find(e.name);
    if (found == nullptr || !e.law.random()) continue;
    context.progress();
    runs.add(e.name, *found);
  }
  context.phase("search");
  Json pairs = Json::array();
  std::string first;
  const auto repeats = runs.repeats();
  for (const auto& r : repeats) {
    if (first.empty()) {
      first = fmt::format("{} from value {} on and {} from value {} on have the same signs{}", r.first, r.first_offset,
                          r.second, r.second_offset, r.inverted ? ", inverted" : "");
    }
    if (pairs.size() < 16) pairs.push_back({{"first", r.first}, {"second", r.second}, {"common_runs", r.runs}});
  }
  context.metric("values_compared", static_cast<double>(runs.values()), "1");
  context.expect("no stream is used twice at any scale", repeats.empty(),
                 fmt::format("{} pair(s) of parameters share a random stream: {}", repeats.size(), first),
                 codes::kStreamReused, {{"pairs", pairs}, {"count", repeats.size()}});
}

}  // namespace suites::init_checks
