#include "nsa/parallel/diagnosis.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace nsa::parallel {

namespace {

using nlohmann::json;

json to_json(const CollectiveRecord& record) {
  return {{"sequence", record.sequence}, {"name", record.name},       {"elements", record.elements},
          {"dtype", record.dtype},       {"began_s", record.began_s}, {"ended_s", record.ended_s}};
}

CollectiveRecord record_of(const json& text) {
  CollectiveRecord record;
  record.sequence = text.value("sequence", std::uint64_t{0});
  record.name = text.value("name", "");
  record.elements = text.value("elements", std::int64_t{0});
  record.dtype = text.value("dtype", "");
  record.began_s = text.value("began_s", 0.0);
  record.ended_s = text.value("ended_s", -1.0);
  return record;
}

bool is_same(const CollectiveRecord& a, const CollectiveRecord& b) {
  return a.name == b.name && a.elements == b.elements && a.dtype == b.dtype;
}

// Done with its own part, and only waiting, in another collective than the others: before it, or behind it where it has
// been through the very same.
bool only_waits(const RankState& state, const CollectiveRecord& waited) {
  if (!state.answered || !state.open || !state.sent || state.open->sequence == waited.sequence) return false;
  return state.open->sequence < waited.sequence ||
         std::all_of(state.records.begin(), state.records.end(), [&](const CollectiveRecord& record) {
           return record.sequence != waited.sequence || is_same(record, waited);
         });
}

// Where a rank stands that is not where the others wait; "" when it is there.
std::string elsewhere(const RankState& state, const CollectiveRecord& waited) {
  if (!state.answered) return "gives no answer: it is dead, stopped, or its machine cannot be reached";
  const std::string doing = state.doing.empty() ? "" : fmt::format(", in its phase '{}'", state.doing);
  if (state.open && state.open->sequence == waited.sequence) {
    if (state.open->name != waited.name) return fmt::format("is in collective {}", describe(*state.open));
    return state.sent ? "" : fmt::format("has begun it and sends nothing{}", doing);
  }
  if (state.open) return fmt::format("is in collective {}", describe(*state.open));
  if (!state.last) return fmt::format("has not begun any collective{}", doing);
  if (state.last->sequence >= waited.sequence) return "";  // it has been through
  return fmt::format("is outside of any collective; its last was {}{}", describe(*state.last), doing);
}

// The collective in which most ranks are; `waited` where none is in front.
CollectiveRecord most_are_in(const CollectiveRecord& waited, const std::vector<RankState>& states) {
  const auto count = [&](const CollectiveRecord& record) {
    return std::count_if(states.begin(), states.end(), [&](const RankState& state) {
      return state.open && state.open->sequence == record.sequence && state.open->name == record.name;
    });
  };
  CollectiveRecord usual = waited;
  for (const RankState& state : states)
    if (state.open && count(*state.open) > count(usual)) usual = *state.open;
  return usual;
}

}  // namespace

std::string to_text(const Trouble& trouble) {
  const json text = {{"kind", trouble.kind}, {"ranks", trouble.ranks}, {"why", trouble.why}};
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

Trouble trouble_of(const std::string& text) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return {"failed", {}, text};
  return {parsed.value("kind", "failed"), parsed.value("ranks", std::vector<int>()), parsed.value("why", "")};
}

std::string to_text(const RankState& state) {
  json text = {{"doing", state.doing}, {"sent", state.sent}, {"stacks", state.stacks}, {"records", json::array()}};
  if (state.open) text["open"] = to_json(*state.open);
  if (state.last) text["last"] = to_json(*state.last);
  for (const auto& record : state.records) text["records"].push_back(to_json(record));
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

RankState state_of(int rank, const std::string& text) {
  RankState state;
  state.rank = rank;
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return state;
  state.answered = true;
  state.doing = parsed.value("doing", "");
  state.sent = parsed.value("sent", false);
  state.stacks = parsed.value("stacks", "");
  if (parsed.contains("open")) state.open = record_of(parsed["open"]);
  if (parsed.contains("last")) state.last = record_of(parsed["last"]);
  for (const json& record : parsed.value("records", json::array())) state.records.push_back(record_of(record));
  return state;
}

Diagnosis diagnose(int rank, const CollectiveRecord& waited, double seconds, const std::vector<RankState>& states) {
  Diagnosis found;
  std::vector<std::string> sentences;
  const CollectiveRecord usual = most_are_in(waited, states);
  // Who only waits elsewhere is named where nobody else is missing.
  for (const bool waiting_too : {false, true}) {
    for (const RankState& state : states) {
      const std::string where = !waiting_too && only_waits(state, usual) ? "" : elsewhere(state, usual);
      if (where.empty()) continue;
      found.culprits.push_back(state.rank);
      sentences.push_back(fmt::format("rank {} {}", state.rank, where));
    }
    if (!sentences.empty()) break;
  }
  found.what = fmt::format("rank {} waited {:.1f} s in collective {}: {}", rank, seconds, describe(waited),
                           sentences.empty() ? "all ranks are in it, and their network delivers nothing"
                                             : fmt::format("{}", fmt::join(sentences, "; ")));
  return found;
}

std::string full_text(const std::string& what, const std::vector<RankState>& states) {
  std::string text = what + "\n";
  for (const RankState& state : states) {
    text += fmt::format("\n==== rank {}{}\n", state.rank, state.answered ? "" : ": no answer");
    if (!state.answered) continue;
    text += fmt::format("phase: {}\ncollectives, the newest last:\n", state.doing.empty() ? "-" : state.doing);
    for (const auto& record : state.records)
      text += fmt::format("  {}: {:.3f} s to {}\n", describe(record), record.began_s,
                          record.ended_s < 0 ? "(not ended)" : fmt::format("{:.3f} s", record.ended_s));
    text += state.stacks;
  }
  return text;
}

}  // namespace nsa::parallel
