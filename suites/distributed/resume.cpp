// The case resume.
#include <fmt/format.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/distributed/cases.hpp"

namespace suites::distributed_cases {

using namespace distributed_ranks;

void resume(const Subject& subject, Context& context, int from, int to) {
  constexpr std::int64_t kCut = 3;
  Trial trial{.ranks = from, .most_ranks = to, .steps = 6, .rows = 12, .whole_batches = 6};
  TrialFolder folder(context, fmt::format("resume-{}-{}", from, to));
  Order order = make_order(subject, context, trial, folder.path());
  context.phase("one process, not interrupted");
  order.keep_first_step = true;
  const Alone whole = run_alone(subject, order);
  order.keep_first_step = false;
  context.phase(fmt::format("{} ranks up to the cut", from));
  Order first = order;
  first.folder /= "first";
  first.stop_after = kCut;
  first.save_to = folder.path() / "cut.safetensors";
  const auto before = run_told(context, first, from, folder);
  if (!before) return;
  context.phase(fmt::format("{} ranks from there on", to));
  Order second = order;
  second.folder /= "second";
  second.resume_from = first.save_to;
  RankRecord told;
  Disagreements found;
  if (to == 1) {
    told = run_alone(subject, second).record;
  } else {
    const auto after = run_told(context, second, to, folder);
    if (!after) return;
    RankRecord rest = whole.record;
    rest.steps.erase(rest.steps.begin(), rest.steps.begin() + kCut);
    found = rows_complete(*after, rest);
    told = after->front();
  }
  for (Disagreement& one : found) one.code = codes::kRankResume;
  tell(context, "the rows go on where they were", found, codes::kRankResume, folder);
  told.steps.insert(told.steps.begin(), before->front().steps.begin(), before->front().steps.end());
  const nsa::Config config = config_of(order);
  const double bound =
      tolerance_of_a_run(config, whole.record.steps.front(), elements_of(whole.tensors), tolerance(config, trial.rows));
  context.metric("tolerance_of_the_run", bound, "of the loss");
  tell(context, "losses go on", losses_agree(told, whole.record, bound, codes::kRankResume), codes::kRankResume,
       folder);
  for (std::size_t s = 0; s < std::min(told.steps.size(), whole.record.steps.size()); ++s)
    context.expect_equal(fmt::format("rate of step {}", s), told.steps[s].lr, whole.record.steps[s].lr,
                         codes::kRankResume);
}

}  // namespace suites::distributed_cases
