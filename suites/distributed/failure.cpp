// The case failure: what goes wrong on one rank is told by the product itself.
#include <fmt/format.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/distributed/cases.hpp"

namespace suites::distributed_cases {

using namespace distributed_ranks;

const std::vector<Failure>& failures() {
  static const std::vector<Failure> all = {
      {"rank-never-arrives", codes::kRankAbsent},
      {"rank-dies", codes::kRankDied},
      {"rank-hangs-outside", codes::kRankHangsOutside},
      {"rank-hangs-inside", codes::kRankHangsInside},
      {"rank-other-shape", codes::kCollectiveDiffers},
      {"rank-other-dtype", codes::kCollectiveDiffers},
      {"rank-skips-parameter", codes::kRankSkipsParameter},
      {"rank-other-weights", codes::kRankWeights},
      {"rank-other-order", codes::kRankData},
      {"rank-other-seed", codes::kRankSeed},
      {"rank-other-build", codes::kRankBuild},
      {"rank-other-flags", codes::kRankSettings},
      {"rank-clock-skew", codes::kRankClock},
      {"rank-store-unreachable", codes::kStoreUnreachable},
      {"rank-port-in-use", codes::kPortTaken},
  };
  return all;
}

namespace {

bool hangs(const Failure& failure) {
  return failure.code == codes::kRankHangsOutside || failure.code == codes::kRankHangsInside;
}

// The rank at fault: the last one; rank 0 where it is to serve the store.
int culprit(const Failure& failure, int ranks) { return failure.code == codes::kPortTaken ? 0 : ranks - 1; }

// Whether the stacks of every rank stand in what was told.
bool has_stacks(const Json& evidence, int ranks) {
  std::string all;
  for (const auto& [rank, said] : evidence.at("said").items()) all += said.value("stacks", "");
  for (int rank = 0; rank < ranks; ++rank)
    if (all.find(fmt::format("==== rank {}\n", rank)) == std::string::npos) return false;
  return true;
}

}  // namespace

void failure(const Subject& subject, Context& context, const Failure& failure, int ranks) {
  const Trial trial{.ranks = ranks, .steps = 3, .rows = 6, .whole_batches = 3};
  TrialFolder folder(context, std::string(failure.fault));
  Order order = make_order(subject, context, trial, folder.path());
  order.timeout_s = std::min(order.timeout_s, 6.0);
  order.check_always = failure.code == codes::kCollectiveDiffers;
  order.planted.emplace_back(failure.fault);
  context.phase(std::string(failure.fault));
  const std::vector<Ended> ends = run_ranks(order, {.size = ranks, .progress = [&] { context.progress(); }});
  for (const Ended& end : ends)
    if (end.record.error && end.record.error->kind == "not_built")
      context.skip("no_backend", end.record.error->message);
  const std::vector<std::string> left = left_over(order);
  context.expect("no process is left", left.empty(), fmt::format("{} processes are left", left.size()),
                 codes::kRankLeftOver, {{"processes", left}});
  const Disagreements told = judge_ends(ends);
  const std::string code = told.empty() ? "nothing" : std::string(told.front().code);
  const Json evidence = told.empty() ? Json::object() : told.front().evidence;
  const Json seen = {{"fault", failure.fault},
                     {"wanted", failure.code},
                     {"told", code},
                     {"message", told.empty() ? "" : told.front().message},
                     {"evidence", evidence}};
  context.fact("told", seen);
  const bool right =
      context.expect("the failure is told as what it is", code == failure.code,
                     fmt::format("{} is told as {}: {}", failure.fault, code, told.empty() ? "" : told.front().message),
                     codes::kRankNotTold, seen);
  const Json ranks_told = evidence.value("ranks", Json::array());
  const bool named = context.expect("with the rank's name", ranks_told == Json::array({culprit(failure, ranks)}),
                                    fmt::format("{}: the ranks that are named are {}; it is rank {}", failure.fault,
                                                ranks_told.dump(), culprit(failure, ranks)),
                                    codes::kRankNotTold, seen);
  if (!right || !named) folder.keep();
  double first = 1e9;  // when the first rank knew
  for (const Ended& end : ends)
    if (!end.ended_by_us) first = std::min(first, end.seconds);
  context.metric("seconds_to_detection", first, "s");
  // Start-up of the processes, the wait, and asking the others for their stacks.
  context.expect_at_most("it is told in time", first, 20 + 2 * order.timeout_s, "s", codes::kRankNotTold, seen);
  if (hangs(failure))
    context.expect(
        "a hang is told with the collective, its number and all stacks",
        evidence.value("sequence", 0) > 0 && !evidence.value("collective", "").empty() && has_stacks(evidence, ranks),
        fmt::format("{}: collective, sequence number or a rank's stacks are missing", failure.fault),
        codes::kRankNotTold, seen);
}

}  // namespace suites::distributed_cases
