#include "harness/case_feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace harness {

using reports::Status;

namespace {

constexpr std::array<std::string_view, 6> kTold{"phase", "retry", "metric", "check", "fact", "artifact"};

std::string text_at(const Json& event, const char* key) {
  const auto at = event.find(key);
  if (at == event.end() || !at->is_string())
    throw ProtocolViolation(fmt::format("an event without a text '{}': {:.200}", key, event.dump()));
  return at->get<std::string>();
}

}  // namespace

CaseFeed::CaseFeed(Recorder& recorder, std::string suite, std::span<const PlannedCase> cases, std::uint64_t master_seed,
                   int worker)
    : recorder_(recorder), suite_(std::move(suite)), cases_(cases), master_seed_(master_seed), worker_(worker) {}

void CaseFeed::accept(const Json& event) try {
  const std::string kind = text_at(event, "event");
  if (kind == "case_begin") return begin(event);
  const std::string id = text_at(event, "case");
  const PlannedCase* in_flight = recorder_.in_flight();
  if (in_flight == nullptr || id != in_flight->id)
    throw ProtocolViolation(fmt::format("'{}' for case '{}', while {} is in flight", kind, id,
                                        in_flight == nullptr ? "none" : in_flight->id));
  if (kind == "case_end") return end(event);
  if (kind == "finding") return finding(event);
  if (std::find(kTold.begin(), kTold.end(), kind) == kTold.end())
    throw ProtocolViolation(fmt::format("an event of the unknown kind '{}'", kind));
  const bool retry = kind == "retry";
  if (retry && retried_)  // each attempt has the whole time limit: there would be none
    throw ProtocolViolation(fmt::format("case '{}' begins anew a second time", id));
  recorder_.tell(event);
  retried_ = retried_ || retry;
} catch (const std::invalid_argument& error) {  // the journal refuses it
  throw ProtocolViolation(error.what());
}

void CaseFeed::begin(const Json& event) {
  const std::string id = text_at(event, "case");
  if (recorder_.in_flight() != nullptr || finished() || id != cases_[ended_].id)
    throw ProtocolViolation(fmt::format("begins case '{}' out of turn", id));
  recorder_.begin_case(suite_, cases_[ended_], worker_, derive_seed(master_seed_, id, "case", 0));
  retried_ = false;
}

void CaseFeed::finding(const Json& event) {
  FindingNote note{text_at(event, "code"), std::nullopt, text_at(event, "message"), Json::object()};
  if (event.contains("severity")) {
    note.severity = reports::parse_severity(text_at(event, "severity"));
    if (!note.severity) throw ProtocolViolation(fmt::format("a finding of severity {}", event.at("severity").dump()));
  }
  if (event.contains("evidence") && !event.at("evidence").is_null()) note.evidence = event.at("evidence");
  if (!note.evidence.is_object()) note.evidence = {{"value", note.evidence}};
  recorder_.finding(note);
}

void CaseFeed::end(const Json& event) {
  const auto status = reports::parse_status(text_at(event, "status"));
  if (status != Status::pass && status != Status::error && status != Status::skip && status != Status::crash &&
      status != Status::inconclusive)
    throw ProtocolViolation(fmt::format("a case cannot say of itself that it ends with {}", event.at("status").dump()));
  const CaseEnd end{*status, text_at(event, "reason_code"), text_at(event, "reason")};
  if ((status == Status::skip || status == Status::inconclusive) && end.reason_code.empty())
    throw ProtocolViolation(fmt::format("a case that is {} without a reason code", reports::to_string(*status)));
  recorder_.end_case(end);
  ++ended_;
}

void CaseFeed::blame(const FindingNote& note, const CaseEnd& end) {
  if (recorder_.in_flight() == nullptr) {
    if (finished()) return recorder_.finding(note);
    const PlannedCase& next = cases_[ended_];
    recorder_.begin_case(suite_, next, worker_, derive_seed(master_seed_, next.id, "case", 0));
  }
  recorder_.finding(note);
  cancel(end);
}

void CaseFeed::cancel(const CaseEnd& end) {
  if (recorder_.in_flight() == nullptr) return;
  recorder_.end_case(end);
  ++ended_;
}

}  // namespace harness
