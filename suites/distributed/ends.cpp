#include "suites/distributed/ends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "harness/process.hpp"
#include "suites/codes.hpp"

namespace suites::distributed_ranks {

namespace {

using Ends = std::vector<Ended>;

// What every rank said, where it stood, and when it ended: the evidence of every finding here.
Json evidence_of(const Ends& ends, const std::vector<int>& ranks) {
  Json said = Json::object();
  double last = 0;
  for (const Ended& end : ends) {
    Json one = {{"ended", end.how()},
                {"by_us", end.ended_by_us},
                {"last_moment", end.record.last_moment()},
                {"seconds", end.seconds}};
    if (end.record.error) {
      one["error"] = end.record.error->kind;
      one["message"] = end.record.error->message;
      if (end.record.error->details.contains("stacks")) one["stacks"] = end.record.error->details["stacks"];
    }
    said[std::to_string(end.record.rank)] = std::move(one);
    last = std::max(last, end.seconds);
  }
  return {{"ranks", ranks}, {"seconds", last}, {"said", std::move(said)}};
}

// The first rank that ended with an error of this kind.
const Ended* who_says(const Ends& ends, std::string_view kind) {
  const auto found = std::find_if(ends.begin(), ends.end(),
                                  [&](const Ended& end) { return end.record.error && end.record.error->kind == kind; });
  return found == ends.end() ? nullptr : &*found;
}

// Of a rank that has one: who_says() and the loops below look. Throws where there is none.
const RankError& error_of(const Ended& witness) {
  return witness.record.error.value();  // NOLINT(bugprone-unchecked-optional-access)
}

std::vector<int> culprits(const Ended& witness) {
  const Json& details = error_of(witness).details;
  if (details.contains("ranks") && !details["ranks"].empty()) return details["ranks"].get<std::vector<int>>();
  return {};
}

const Ended* of_rank(const Ends& ends, int rank) {
  const auto found = std::find_if(ends.begin(), ends.end(), [&](const Ended& end) { return end.record.rank == rank; });
  return found == ends.end() ? nullptr : &*found;
}

Disagreement told(const Ends& ends, std::string_view code, const std::vector<int>& ranks, std::string message) {
  return {code, std::move(message), evidence_of(ends, ranks)};
}

// "rank 0 says: ..."
std::string in_his_words(const Ended& witness) {
  return fmt::format("rank {} says after {:.1f} s: {}", witness.record.rank, witness.seconds,
                     error_of(witness).message);
}

std::optional<Disagreement> full_shared_memory(const Ends& ends, double needed_bytes) {
  for (const Ended& end : ends) {
    const double free = end.record.shared_memory_bytes;
    if (needed_bytes <= 0 || free < 0 || free >= needed_bytes) continue;
    return told(ends, codes::kSharedMemory, {end.record.rank},
                fmt::format("/dev/shm of rank {} has {:.0f} bytes left; ranks of one machine need {:.0f}",
                            end.record.rank, free, needed_bytes));
  }
  return std::nullopt;
}

// A process that nobody ended but itself or somebody outside, and that said nothing of an error.
std::optional<Disagreement> death(const Ends& ends) {
  const Ended* first = nullptr;
  for (const Ended& end : ends) {
    const bool died = !end.ended_by_us && !end.record.error && !end.record.done && (end.by_signal || end.value != 0);
    if (died && (first == nullptr || end.seconds < first->seconds)) first = &end;
  }
  if (first == nullptr) return std::nullopt;
  return told(ends, codes::kRankDied, {first->record.rank},
              fmt::format("rank {} died ({}) after {:.1f} s, at: {}", first->record.rank, first->how(), first->seconds,
                          first->record.last_moment()));
}

std::optional<Disagreement> before_the_group_stood(const Ends& ends) {
  struct Kind {
    std::string_view kind, code;
    bool of_the_witness;  // who says it has the trouble
  };
  const Kind kinds[] = {{"port_taken", codes::kPortTaken, true},
                        {"twice", codes::kRankAbsent, true},
                        {"unreachable", codes::kStoreUnreachable, true},
                        {"absent", codes::kRankAbsent, false}};
  for (const Kind& row : kinds) {
    const Ended* witness = who_says(ends, row.kind);
    if (witness == nullptr) continue;
    std::vector<int> ranks = culprits(*witness);
    if (ranks.empty() && row.of_the_witness) ranks = {witness->record.rank};
    return told(ends, row.code, ranks, in_his_words(*witness));
  }
  return std::nullopt;
}

std::optional<Disagreement> disagreement(const Ends& ends) {
  const Ended* witness = who_says(ends, "disagreement");
  if (witness == nullptr) return std::nullopt;
  const Json& details = error_of(*witness).details;
  const std::string fact = details.value("fact", "");
  Disagreement found = told(ends, code_of_fact(fact), culprits(*witness), in_his_words(*witness));
  found.evidence["fact"] = fact;
  return found;
}

// Whose absence it was, and where he stood then.
std::optional<Disagreement> timeout(const Ends& ends) {
  const Ended* witness = who_says(ends, "timeout");
  if (witness == nullptr) return std::nullopt;
  const Json& details = error_of(*witness).details;
  const std::vector<int> ranks = culprits(*witness);
  const Ended* missing = ranks.empty() ? nullptr : of_rank(ends, ranks.front());
  const std::string moment = missing == nullptr ? "" : missing->record.last_moment();
  const bool outside = missing != nullptr && !moment.starts_with("in ");
  Disagreement found =
      told(ends, outside ? codes::kRankHangsOutside : codes::kRankHangsInside, ranks, in_his_words(*witness));
  found.evidence["collective"] = details.value("collective", "");
  found.evidence["sequence"] = details.value("sequence", 0);
  found.evidence["last_moment"] = moment;
  return found;
}

std::optional<Disagreement> peer_died(const Ends& ends) {
  const Ended* witness = who_says(ends, "peer_died");
  if (witness == nullptr) return std::nullopt;
  return told(ends, codes::kRankDied, culprits(*witness), in_his_words(*witness));
}

// An error of another kind, the earliest.
std::optional<Disagreement> other(const Ends& ends) {
  const Ended* first = nullptr;
  for (const Ended& end : ends)
    if (end.record.error && end.record.error->kind == "other" && (first == nullptr || end.seconds < first->seconds))
      first = &end;
  if (first == nullptr) return std::nullopt;
  return told(ends, codes::kRankEnded, {first->record.rank}, in_his_words(*first));
}

}  // namespace

std::string Ended::how() const { return by_signal ? harness::signal_name(value) : fmt::format("exit code {}", value); }

std::string_view code_of_fact(std::string_view fact) {
  struct Row {
    std::string_view begins, code;
  };
  const Row rows[] = {{"weights", codes::kRankWeights},
                      {"seed", codes::kRankSeed},
                      {"build", codes::kRankBuild},
                      {"flag", codes::kRankSettings},
                      {"config", codes::kRankSettings},
                      {"model.", codes::kRankSettings},
                      {"nsa.", codes::kRankSettings},
                      {"train.", codes::kRankSettings},
                      {"data", codes::kRankData},
                      {"step", codes::kRankData},
                      {"clock", codes::kRankClock},
                      {"collective", codes::kCollectiveDiffers},
                      {"parameter ", codes::kCollectiveDiffers},
                      {"gradient", codes::kRankSkipsParameter}};
  for (const Row& row : rows)
    if (fact.starts_with(row.begins)) return row.code;
  return codes::kRankEnded;
}

Disagreements judge_ends(const Ends& ends, double needed_bytes) {
  if (auto found = full_shared_memory(ends, needed_bytes)) return {std::move(*found)};
  if (std::all_of(ends.begin(), ends.end(), [](const Ended& end) { return end.well(); })) return {};
  // A death explains what the others say; what was found before the group stood explains a later one.
  for (auto judge : {death, before_the_group_stood, disagreement, other, timeout, peer_died})
    if (auto found = judge(ends)) return {std::move(*found)};
  std::vector<int> ranks;
  for (const Ended& end : ends)
    if (!end.well()) ranks.push_back(end.record.rank);
  return {told(ends, codes::kRankEnded, ranks,
               fmt::format("{} did not come to the end, and nobody says why", ranks_in_words(ranks)))};
}

}  // namespace suites::distributed_ranks
