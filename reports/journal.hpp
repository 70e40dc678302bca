// The journal, events.jsonl: one JSON object a line, appended *before* the supervisor acts on it. It is the only source
// of a report, so a run that is killed at any moment still has one.
//
// Every event has "event" (its kind), "t" (RFC 3339, UTC, milliseconds) and "seq" (0, 1, 2, ...). Kinds and fields:
//
//  run_begin    schema "nsa-validate/event", schema_version "1.1.0", run {id, argv, level, device, master_seed},
//               provenance {...}, faults [names],
//               plan {suites: [{name, purpose, requires: [..], cases: [{id, hash, name, params, level, required}]}]}
//               (provenance.selection.partial: something of the level was left out by name; absent: false)
//               (a planned case may carry "repro", its command; else its first finding's command stands for it)
//  worker_begin worker (number), pid, suite
//  case_begin   case (id), worker, seed
//  phase        case, name
//  retry        case, reason: the case begins anew, and what it measured before counts no more (metrics, checks, facts,
//               artifacts); findings stay
//  metric       case, name, value, unit
//  check        case, name, pass, measured, comparator, bound, unit
//  fact         case, key, value
//  artifact     case, path
//  finding      case (absent: of the whole run), code, severity, category, title, message, cause, next, repro, evidence
//  case_end     case, status, reason_code, reason, duration_s       (also for skipped, blocked and cancelled cases);
//               required (absent: as planned; false when the case learnt that this machine cannot run it)
//  worker_end   worker, how ("exit" | "signal" | "killed"), value (exit status or signal number)
//  run_end      duration_s, case_s, interruption (absent, or an exit code)
//
// A case with a case_begin but no case_end was interrupted by the end of the journal: status not_run, reason
// "interrupted"; one that never began is not_run, reason "not_reached". A failed check has a finding; a case that has
// more failed checks than findings and calls itself a pass has failed, reason "unexplained_check". Unknown kinds and
// unknown fields are ignored (forward compatible within a schema major).
#pragma once

#include <filesystem>
#include <istream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "reports/model.hpp"

namespace reports {

inline constexpr const char* kEventSchema = "nsa-validate/event";
inline constexpr const char* kEventSchemaVersion = "1.1.0";
inline constexpr const char* kJournalFile = "events.jsonl";

// The file, the line and what is wrong with it. `incompatible` is set for another schema major.
class JournalError : public std::runtime_error {
 public:
  JournalError(const std::string& what, bool other_major) : std::runtime_error(what), incompatible(other_major) {}
  bool incompatible;
};

// Reads a journal. A torn last line (no newline, or cut inside the object) is expected and recorded in
// Run::torn_tail; anything else that is not an event throws JournalError, as do a missing run_begin, a sequence that
// jumps, an event for a case that was never planned, non-UTF-8 bytes, what is longer than
// journal_rules.hpp allows, and a file that is no regular one.
//
// `summary`: the run without its phases, artifacts, passed checks and those facts that it does not want (by their key),
// in a fraction of the time. What decides is all there. Lines that are left out must be one object in the sequence;
// whether the values inside them are right is not looked at.
using WantedFact = bool (*)(std::string_view key);
[[nodiscard]] Run read_journal(const std::filesystem::path& file, WantedFact summary = nullptr);
[[nodiscard]] Run read_journal(std::istream& in, const std::string& name,  // `name` for messages
                               WantedFact summary = nullptr);

// Builds the model event by event; read_journal is a loop over it. Exposed for tests and for live progress.
class RunBuilder {
 public:
  // Throws std::invalid_argument naming the event's kind, the field, its value and what is allowed.
  void apply(const Json& event);
  // The run as far as it was told; what has no end gets one (see above). The builder is spent afterwards.
  [[nodiscard]] Run finish(bool torn_tail);

 private:
  Run run_;
  bool begun_ = false;
  std::string last_time_;                                                       // "t" of the last event
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> where_;  // case id -> suite, case
  std::unordered_map<std::string, std::string> open_;  // begun and not ended -> "t" of its begin
  void begin(const Json& event);
  void plan(const Json& suite);
  void end(const Json& event);
  [[nodiscard]] Case& find(const Json& event);
};

}  // namespace reports
