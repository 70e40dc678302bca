// Findings, followed from run to run.
#include <algorithm>
#include <map>

#include "reports/compare_parts.hpp"
#include "reports/view.hpp"

namespace reports::comparing {

namespace {

using Seen = FindingRow::Seen;
using Change = FindingRow::Change;

// A finding of one run that waits for its row.
struct Loose {
  const Finding* finding;
  std::string where;  // id of the case, "" for the run
  Json place;
  bool taken = false;
};

std::map<std::string, std::vector<Loose>> by_code(const Run& run) {
  std::map<std::string, std::vector<Loose>> all;
  const auto add_all = [&](const std::vector<Finding>& findings, const std::string& where) {
    for (const Finding& f : findings) all[f.code].push_back({&f, where, view::place(f)});
  };
  add_all(run.findings, "");
  for (const Suite& suite : run.suites)
    for (const Case& c : suite.cases) add_all(c.findings, c.id);
  return all;
}

// Nobody says that a finding is gone whose case did not get to its end.
Seen without(const Runs& runs, std::size_t i, const std::string& where) {
  if (where.empty()) return runs.at(i).complete && !runs.at(i).interruption ? Seen::clean : Seen::no_answer;
  const Case* c = runs.find_case(i, where);
  if (c == nullptr) return Seen::no_answer;
  const Status status = outcome(*c);
  return status == Status::pass || status == Status::fail ? Seen::clean : Seen::no_answer;
}

// The rows of one code, and where each of them was seen last.
class Code {
 public:
  Code(const Runs& runs, const std::string& code) : runs_(runs), code_(code) {}

  void add_run(std::size_t i, std::vector<Loose>& found) {
    std::vector<bool> taken(rows_.size(), false);
    match(i, found, taken,
          [](const Last& last, const Loose& now) { return last.where == now.where && last.place == now.place; });
    match(i, found, taken, [](const Last& last, const Loose& now) { return last.where == now.where; });
    match_moved(i, found, taken);
    for (const Loose& loose : found) {
      if (loose.taken) continue;
      rows_.push_back({code_, loose.finding->title, std::vector<FindingRow::InRun>(runs_.size()), {}});
      last_.push_back({});
      put(i, rows_.size() - 1, loose);
    }
  }
  std::vector<FindingRow> take() {
    for (FindingRow& row : rows_) fill_gaps(row);
    return std::move(rows_);
  }

 private:
  struct Last {
    std::string where;
    Json place;
    std::size_t run = 0;
  };

  template <typename Same>
  void match(std::size_t i, std::vector<Loose>& found, std::vector<bool>& taken, Same same) {
    std::map<std::string, std::vector<std::size_t>> rows_at;
    for (std::size_t row = 0; row < taken.size(); ++row)
      if (!taken[row]) rows_at[last_[row].where].push_back(row);
    for (Loose& loose : found) {
      if (loose.taken) continue;
      std::vector<std::size_t>& rows = rows_at[loose.where];
      const auto it = std::find_if(rows.begin(), rows.end(), [&](std::size_t row) { return same(last_[row], loose); });
      if (it == rows.end()) continue;
      taken[*it] = loose.taken = true;
      put(i, *it, loose);
      rows.erase(it);
    }
  }

  // One is left on each side: it has moved to another case, when both cases could have told it both times.
  void match_moved(std::size_t i, std::vector<Loose>& found, std::vector<bool>& taken) {
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < taken.size(); ++row)
      if (!taken[row] && last_[row].run + 1 == i) rows.push_back(row);
    const auto is_left = [](const Loose& loose) { return !loose.taken; };
    if (rows.size() != 1 || std::count_if(found.begin(), found.end(), is_left) != 1) return;
    Loose& loose = *std::find_if(found.begin(), found.end(), is_left);
    if (without(runs_, i, last_[rows[0]].where) != Seen::clean || without(runs_, i - 1, loose.where) != Seen::clean)
      return;
    loose.taken = true;
    put(i, rows[0], loose);
  }

  void put(std::size_t i, std::size_t row, const Loose& loose) {
    rows_[row].by_run[i] = {Seen::found, loose.where, loose.finding->severity, loose.finding->message,
                            loose.finding->evidence};
    last_[row] = {loose.where, loose.place, i};
  }

  // Runs without it: at the place where it was before, else where it comes up after.
  void fill_gaps(FindingRow& row) const {
    std::string where = std::find_if(row.by_run.begin(), row.by_run.end(), [](const FindingRow::InRun& in) {
                          return in.seen == Seen::found;
                        })->where;
    for (std::size_t i = 0; i < row.by_run.size(); ++i) {
      if (row.by_run[i].seen == Seen::found) {
        where = row.by_run[i].where;
      } else {
        row.by_run[i].where = where;
        row.by_run[i].seen = without(runs_, i, where);
      }
    }
  }

  const Runs& runs_;
  std::string code_;
  std::vector<FindingRow> rows_;
  std::vector<Last> last_;  // of each row
};

Json place_of(const FindingRow::InRun& in) {
  Finding finding;
  finding.evidence = in.evidence;
  return view::place(finding);
}

FindingRow::Step step_of(const FindingRow::InRun& before, const FindingRow::InRun& now) {
  const bool was = before.seen == Seen::found, is = now.seen == Seen::found;
  if (!was && !is) return {Change::none, {}};
  if (!was) return {before.seen == Seen::clean ? Change::appeared : Change::first_told, {}};
  if (!is) return {now.seen == Seen::clean ? Change::gone : Change::no_longer_told, {}};
  FindingRow::Step step{Change::same, {}};
  if (before.severity != now.severity) step.what.emplace_back("severity");
  if (before.where != now.where || place_of(before) != place_of(now)) step.what.emplace_back("place");
  if (before.evidence != now.evidence || before.message != now.message) step.what.emplace_back("evidence");
  if (!step.what.empty()) step.change = Change::changed;
  return step;
}

}  // namespace

void compare_findings(const Runs& runs, Comparison& to) {
  std::map<std::string, Code> codes;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (auto& [code, found] : by_code(runs.at(i))) codes.try_emplace(code, runs, code).first->second.add_run(i, found);
  for (auto& [code, rows] : codes) {
    for (FindingRow& row : rows.take()) {
      for (std::size_t i = 0; i + 1 < runs.size(); ++i) row.steps.push_back(step_of(row.by_run[i], row.by_run[i + 1]));
      to.findings.push_back(std::move(row));
    }
  }
  // The gravest first, as reports show them.
  const auto worst = [](const FindingRow& row) {
    Severity severity = Severity::info;
    for (const FindingRow::InRun& in : row.by_run) severity = std::max(severity, in.severity);
    return severity;
  };
  std::stable_sort(to.findings.begin(), to.findings.end(),
                   [&](const FindingRow& a, const FindingRow& b) { return worst(a) > worst(b); });
}

}  // namespace reports::comparing
