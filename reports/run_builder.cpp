// RunBuilder: from events to the report model.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "reports/fields.hpp"
#include "reports/journal.hpp"
#include "reports/journal_rules.hpp"
#include "reports/records.hpp"

namespace reports {

namespace {

// Seconds since 1970 of "2026-11-21T01:31:05.123Z"; nullopt for any other form.
std::optional<double> seconds_of(const std::string& time) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  if (std::sscanf(time.c_str(), "%4d-%2d-%2dT%2d:%2d:%lfZ", &year, &month, &day, &hour, &minute, &second) != 6) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86400.0 + hour * 3600.0 + minute * 60.0 + second;
}

double seconds_between(const std::string& from, const std::string& to) {
  const auto a = seconds_of(from), b = seconds_of(to);
  return a && b && *b > *a ? *b - *a : 0.0;
}

void end_case(Case& c, const Json& event) {
  const Status status = records::status(event);
  // All fields are read before any is stored: a refused event leaves the model as it was.
  const std::string reason_code = fields::text_or(event, "reason_code", ""),
                    reason = fields::text_or(event, "reason", "");
  c.duration_s = fields::seconds_or(event, "duration_s", 0);
  c.required = fields::boolean_or(event, "required", c.required);
  c.status = status;
  c.reason_code = reason_code;
  c.reason = reason;
}

// A failed check has a finding that says what it means. One without is not explained away by a case that calls itself
// a pass: it has failed.
void fail_unexplained(Case& c) {
  if (c.status != Status::pass && c.status != Status::skip && c.status != Status::inconclusive) return;
  const auto failed = [](const Check& check) { return !check.pass; };
  if (std::count_if(c.checks.begin(), c.checks.end(), failed) <= static_cast<std::ptrdiff_t>(c.findings.size())) return;
  c.status = Status::fail;
  c.reason_code = kUnexplainedCheck;
  c.reason = fmt::format("the check '{}' failed and no finding says so",
                         std::find_if(c.checks.begin(), c.checks.end(), failed)->name);
}

}  // namespace

void RunBuilder::begin(const Json& event) {
  if (begun_) throw std::invalid_argument("run_begin: a second one; a journal holds one run");
  const auto& run = fields::object(event, "run");
  run_.id = fields::text(run, "id");
  run_.argv = fields::array_or_empty(run, "argv");
  run_.level = records::level(run);
  run_.device = fields::text(run, "device");
  run_.master_seed = fields::natural(run, "master_seed");
  run_.started = fields::text(event, "t");
  run_.provenance = fields::object_or_empty(event, "provenance");
  run_.faults = fields::array_or_empty(event, "faults");
  run_.partial = fields::boolean_or(fields::object_or_empty(run_.provenance, "selection"), "partial", false);
  for (const auto& suite : fields::array(fields::object(event, "plan"), "suites")) plan(suite);
  begun_ = true;
}

void RunBuilder::plan(const Json& entry) {
  Suite suite;
  suite.name = records::suite_name(entry);
  suite.purpose = fields::text_or(entry, "purpose", "");
  suite.requires_suites = records::required_suites(entry);
  for (const auto& item : fields::array(entry, "cases")) {
    suite.cases.push_back(records::planned_case(item, suite.name));
    const std::string& id = suite.cases.back().id;
    if (!where_.emplace(id, std::pair{run_.suites.size(), suite.cases.size() - 1}).second) {
      throw std::invalid_argument(fmt::format("run_begin: case '{}' is planned twice", id));
    }
  }
  for (const auto& other : run_.suites) {
    if (other.name == suite.name)
      throw std::invalid_argument(fmt::format("run_begin: suite '{}' is planned twice", suite.name));
  }
  run_.suites.push_back(std::move(suite));
}

void RunBuilder::end(const Json& event) {
  const double duration_s = fields::seconds(event, "duration_s"), case_s = fields::seconds(event, "case_s");
  if (event.contains("interruption") && !event.at("interruption").is_null())
    run_.interruption = records::interruption(event);
  run_.duration_s = duration_s;
  run_.harness_s = std::max(0.0, duration_s - case_s);
  run_.complete = true;
}

Case& RunBuilder::find(const Json& event) {
  const std::string id = fields::text(event, "case");
  const auto it = where_.find(id);
  if (it == where_.end()) fields::reject(event, "case", "the id of a planned case");
  return run_.suites[it->second.first].cases[it->second.second];
}

void RunBuilder::apply(const Json& event) {
  if (!event.is_object()) throw std::invalid_argument("not a JSON object");
  if (records::nests_deeper(event, kMostDepth))
    throw std::invalid_argument(fmt::format("brackets nest deeper than {}", kMostDepth));
  const std::string kind = fields::text(event, "event");
  if (kind != "run_begin" && !begun_) throw std::invalid_argument(kind + ": comes before run_begin");
  if (run_.complete) throw std::invalid_argument(kind + ": comes after run_end");
  last_time_ = fields::text(event, "t");

  if (kind == "run_begin") {
    begin(event);
  } else if (kind == "case_begin") {
    Case& c = find(event);
    c.seed = fields::natural(event, "seed");
    open_[c.id] = last_time_;
  } else if (kind == "phase") {
    find(event).last_phase = fields::prose(event, "name");
  } else if (kind == "retry") {
    (void)fields::prose(event, "reason");
    Case& c = find(event);
    c.last_phase.clear();
    c.metrics.clear();
    c.checks.clear();
    c.artifacts.clear();
    c.facts = Json::object();
  } else if (kind == "metric") {
    find(event).metrics.push_back(records::metric(event));
  } else if (kind == "check") {
    find(event).checks.push_back(records::check(event));
  } else if (kind == "fact") {
    if (!event.contains("value")) fields::reject(event, "value", "any value");
    find(event).facts[fields::prose(event, "key")] = event.at("value");
  } else if (kind == "artifact") {
    find(event).artifacts.push_back(fields::prose(event, "path"));
  } else if (kind == "finding") {
    (event.contains("case") ? find(event).findings : run_.findings).push_back(records::finding(event));
  } else if (kind == "case_end") {
    Case& c = find(event);
    end_case(c, event);
    open_.erase(c.id);
  } else if (kind == "run_end") {
    end(event);
  }  // worker_begin, worker_end and kinds of a later minor version: nothing in the model
}

Run RunBuilder::finish(bool torn_tail) {
  if (!begun_) throw std::invalid_argument("no run_begin: nothing of the run was recorded");
  run_.torn_tail = torn_tail;
  run_.ended = last_time_;
  double case_s = 0;
  for (auto& suite : run_.suites) {
    for (auto& c : suite.cases) {
      if (const auto begun = open_.find(c.id); begun != open_.end()) {
        c.status = Status::not_run;
        c.reason_code = "interrupted";
        c.reason = "the journal ends inside this case";
        c.duration_s = seconds_between(begun->second, last_time_);
      } else if (c.status == Status::not_run && c.reason_code.empty()) {
        c.reason_code = "not_reached";
        c.reason = "the run ended before this case";
      }
      fail_unexplained(c);
      if (c.repro.empty() && !c.findings.empty()) c.repro = c.findings.front().repro;
      suite.duration_s += c.duration_s;
    }
    case_s += suite.duration_s;
  }
  if (!run_.complete) {
    run_.duration_s = seconds_between(run_.started, run_.ended);
    run_.harness_s = std::max(0.0, run_.duration_s - case_s);
  }
  return std::move(run_);
}

}  // namespace reports
