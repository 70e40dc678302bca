// What the texts for readers (Markdown, HTML, console, JUnit) show, chosen once for all of them: findings grouped by
// code, environment as rows, numbers as words. Private to reports/; escaping is each writer's own business.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reports/chart.hpp"
#include "reports/model.hpp"

namespace reports::view {

using Row = std::pair<std::string, std::string>;  // name, value

// -- words
[[nodiscard]] std::string duration(double seconds);  // "0.42 s", "3 min 07 s"
[[nodiscard]] std::string value(const Json& value);  // a scalar as read by people, anything else as compact JSON
[[nodiscard]] std::string measure(const Json& v, const std::string& unit);  // "312.5 tok/s"
[[nodiscard]] std::string cut(const std::string& text, std::size_t bytes);  // at a character's end, with "..."
[[nodiscard]] std::string one_line(const std::string& text);  // breaks become spaces; no other control characters
[[nodiscard]] std::string utf8(const std::string& text);      // ill-formed bytes become U+FFFD
using reports::counts;
[[nodiscard]] std::string plural(std::size_t n, const std::string& noun);  // "1 case", "2 cases"
[[nodiscard]] std::string planted_faults(const Run& run);                  // "" on a real run

// Why a case ended as it did: its reason, the phase that it died in, its first failing finding's message.
[[nodiscard]] std::string why(const Case& c);

// -- findings
// Where in its case a finding is, of its evidence: layer, op, tensor, row and so on.
[[nodiscard]] Json place(const Finding& finding);
// How exactly a finding's evidence says where: one defect shows in many cases, and the one that has its place leads.
[[nodiscard]] int located(const Finding& finding);

struct Occurrence {
  const Finding* finding;
  const Case* where;  // nullptr: of the whole run
};
// All findings of one code, the worst first, and of equals the one that says most exactly where; grouped because one
// defect shows in many cases.
struct FindingGroup {
  Severity severity;  // the worst
  std::vector<Occurrence> occurrences;
  [[nodiscard]] const Finding& first() const { return *occurrences.front().finding; }
};
// Those that stand for themselves: the likeliest cause's first, then the worst. `follow_from`: instead those that
// follow from this cause.
[[nodiscard]] std::vector<FindingGroup> findings(const Run& run, const std::string& follow_from = "");

// The command that repeats what is judged without this program: evidence {"python": {"command"}} of the first
// occurrence that has one. "" for none.
[[nodiscard]] std::string python_command(const Finding& finding);
[[nodiscard]] std::string python_command(const FindingGroup& group);

// The command that replays the bundle of the first occurrence that has one. "" for none.
[[nodiscard]] std::string replay_command(const Run& run, const FindingGroup& group);

// -- causes
[[nodiscard]] std::string sentence(const LikelyCause& cause);  // with its full stop
[[nodiscard]] std::string follows(const LikelyCause& cause);   // "NSA-A010 (10), NSA-N004 (26)"; "" for none

// At most `limit` rows of an evidence object, long values cut; `left_out` tells how many more it has. What is text line
// by line ("stacks", "last_lines") is no row but a text, also cut; what python_command() gives is neither.
struct Evidence {
  std::vector<Row> rows, texts;
  std::size_t left_out = 0;
};
[[nodiscard]] Evidence evidence(const Json& evidence, std::size_t limit);

// -- environment, from the provenance whatever its depth: "source.git_commit" -> "...". Without the flags.
[[nodiscard]] std::vector<Row> environment(const Run& run);
struct Flag {
  std::string name, value, origin;
};
[[nodiscard]] std::vector<Flag> flags(const Run& run);

// Of a row of the fact "routes": the kernels that ran, each as people read it: "sel backward merged parts". One text
// for all of them where an earlier version wrote the journal.
[[nodiscard]] std::vector<std::string> kernels_of(const Json& route);

// -- what ran, from the cases' facts "routes" (rows {op, backend, variant, why, calls, kernels}): a row a function,
// with its ways and the number of cases that took each, most first, and the kernels that ran: "attend", "cuda/in_one in
// 212 cases (sel joint, win wgmma intervals), sdpa/in_parts in 1 case".
[[nodiscard]] std::vector<Row> ways(const Run& run);

// -- measurements
// The suite's first metrics, each with its range over the cases: "tokens_per_s 312 ... 340 tok/s".
[[nodiscard]] std::string key_metrics(const Suite& suite);

// A unit of speed and use: something per second, a time, a percentage.
[[nodiscard]] bool is_speed(const std::string& unit);

struct Gate {
  const Case* where;
  const Check* check;
};
struct Rate {
  const Case* where;
  const Metric* metric;
};
// Checks and metrics of speed and use, known by their unit (something per second, a time, a percentage) or by a
// finding of category "performance" in their case.
[[nodiscard]] std::vector<Gate> gates(const Run& run);
[[nodiscard]] std::vector<Rate> rates(const Run& run);

// -- pictures
struct Figure {
  const Case* where;
  Chart chart;
};
[[nodiscard]] std::vector<Figure> charts(
    const Run& run);  // every fact that is one (chart.hpp), in the order of the plan

// -- what to do, in order, without repetition: the next steps of the failing findings, then those of the verdict.
[[nodiscard]] std::vector<std::string> next_steps(const Run& run, const Assessment& assessment);

}  // namespace reports::view
