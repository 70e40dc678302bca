#include "suites/selftest/score.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "base/statistics.hpp"
#include "reports/status.hpp"

namespace suites::selftest {

namespace {

constexpr std::array kOutcomes{std::pair{Outcome::caught, "caught"},
                               std::pair{Outcome::by_crash, "by a crash only"},
                               std::pair{Outcome::other_reason, "for another reason"},
                               std::pair{Outcome::survived, "survived"},
                               std::pair{Outcome::equivalent, "equivalent"},
                               std::pair{Outcome::not_run, "not run"},
                               std::pair{Outcome::broken, "broken"}};

constexpr std::string_view kHarnessCodes = "NSA-X";

bool holds(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

void add_once(std::vector<std::string>& all, const std::string& one) {
  if (!holds(all, one)) all.push_back(one);
}

// Text of a key, "" for anything else.
std::string text_of(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

const Json& list_of(const Json& object, const char* key) {
  static const Json none = Json::array();
  return object.is_object() && object.contains(key) && object[key].is_array() ? object[key] : none;
}

// A word that is not known counts as grave.
bool fails(const Json& finding) {
  const auto severity = reports::parse_severity(text_of(finding, "severity"));
  return !severity || *severity > reports::Severity::warn;
}

template <typename Visit>
void each_finding(const Json& report, Visit visit) {
  for (const Json& finding : list_of(report, "findings")) visit(finding);
  for (const Json& suite : list_of(report, "suites"))
    for (const Json& one : list_of(suite, "cases"))
      for (const Json& finding : list_of(one, "findings")) visit(finding);
}

bool expects(const Planted& fault, const std::string& code) {
  return fault.any_code ? !code.starts_with(kHarnessCodes) : holds(fault.expected_codes, code);
}

bool first_cause_is(const Planted& fault, const Json& report) {
  const Json& causes = list_of(report, "causes");
  if (causes.empty()) return false;
  for (const Json& code : list_of(causes.front(), "codes"))
    if (code.is_string() && expects(fault, code.get<std::string>())) return true;
  return false;
}

std::optional<double> seconds_to_detection(const Planted& fault, const Evidence& evidence) {
  for (const Json& finding : evidence.findings)
    if (fails(finding) && expects(fault, text_of(finding, "code")))
      return seconds_between(evidence.began, text_of(finding, "t"));
  return std::nullopt;
}

Trial about(const Planted& fault) {
  Trial trial;
  trial.fault = fault.name;
  trial.group = fault.group;
  trial.found_by = fault.found_by;
  trial.must_catch = fault.must_catch;
  trial.any_code = fault.any_code;
  trial.what = fault.what;
  trial.expected = fault.expected_codes;
  return trial;
}

// Of a report whose cases have names: which ran, which noticed something, and whose was the first finding.
void look_at_cases(const Evidence& evidence, Trial& trial) {
  trial.reached = evidence.reached;
  for (const Json& suite : list_of(evidence.report, "suites"))
    for (const Json& one : list_of(suite, "cases")) {
      const std::string id = text_of(one, "id");
      const auto status = reports::parse_status(text_of(one, "status"));
      if (id.empty() || !status || !reports::executed(*status)) continue;
      trial.ran.push_back(id);
      const Json& own = list_of(one, "findings");
      if (std::any_of(own.begin(), own.end(), fails)) trial.noticed.push_back(id);
    }
  for (const Json& finding : evidence.findings) {
    const std::string id = text_of(finding, "case");
    if (!fails(finding) || id.empty()) continue;
    trial.first_suite = id.substr(0, id.find('/'));
    break;
  }
}

std::string first_reason(const Json& report) {
  const Json& reasons = list_of(report, "reasons");
  return reasons.empty() || !reasons.front().is_string() ? "no reason told" : reasons.front().get<std::string>();
}

// READY and exit code 0 come together or not at all: a report that says one thing and a program that says another is
// believed by neither.
bool is_ready(const Evidence& evidence) {
  return text_of(evidence.report, "verdict") == reports::to_string(reports::Verdict::ready) && evidence.exit_code == 0;
}

// The program itself died, or says that it has a bug.
bool is_crash(const Evidence& evidence) {
  const int signal = evidence.exit_code - 128;
  return evidence.trouble.empty() && (evidence.exit_code == static_cast<int>(reports::ExitCode::internal) ||
                                      (signal > 0 && signal != SIGINT && signal != SIGTERM));
}

// A row for each name that `names_of` a trial gives.
template <typename NamesOf>
std::vector<Score> table(std::span<const Trial> trials, NamesOf names_of) {
  std::vector<std::string> names;
  for (const Trial& trial : trials)
    for (const std::string& name : names_of(trial)) add_once(names, name);
  std::vector<Score> rows;
  for (const std::string& name : names) {
    std::vector<Trial> own;
    for (const Trial& trial : trials)
      if (holds(names_of(trial), name)) own.push_back(trial);
    rows.push_back(score(name, own));
  }
  return rows;
}

// P(X <= events) for X of Binomial(runs, p), 0 < p < 1.
double at_most(std::size_t events, std::size_t runs, double p) {
  const auto n = static_cast<double>(runs);
  double sum = 0;
  for (std::size_t i = 0; i <= events; ++i) {
    const auto k = static_cast<double>(i);
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) + k * std::log(p) +
                    (n - k) * std::log1p(-p));
  }
  return sum;
}

}  // namespace

std::string_view to_string(Outcome outcome) {
  for (const auto& [known, word] : kOutcomes)
    if (known == outcome) return word;
  throw std::logic_error("not an outcome");
}

std::optional<Outcome> parse_outcome(std::string_view word) {
  for (const auto& [outcome, known] : kOutcomes)
    if (known == word) return outcome;
  return std::nullopt;
}

Trial judge(const Planted& fault, const Evidence& evidence) {
  Trial trial = about(fault);
  if (fault.exit_code != 0 && evidence.exit_code == fault.exit_code) {
    trial.outcome = Outcome::caught;
    trial.cause_first = true;
    return trial;
  }
  if (!evidence.report.is_object()) {
    if (is_crash(evidence) || (fault.any_code && evidence.overran)) trial.outcome = Outcome::by_crash;
    trial.why =
        evidence.trouble.empty() ? fmt::format("no report, exit code {}", evidence.exit_code) : evidence.trouble;
    return trial;
  }
  // A run without the fault in it says nothing of it.
  const Json run = evidence.report.value("run", Json());
  if (const Json& planted = list_of(run, "faults"); planted.size() != 1 || planted.front() != fault.name) {
    trial.why = "its report does not say that the fault was planted";
    return trial;
  }
  each_finding(evidence.report, [&](const Json& finding) {
    if (fails(finding)) add_once(trial.found, text_of(finding, "code"));
  });
  look_at_cases(evidence, trial);
  const bool ready = is_ready(evidence);
  const auto of_harness = [](const std::string& code) { return code.starts_with(kHarnessCodes); };
  if (std::any_of(trial.found.begin(), trial.found.end(), [&](const auto& code) { return expects(fault, code); }) &&
      !ready) {
    trial.outcome = Outcome::caught;
    trial.cause_first = !fault.any_code && first_cause_is(fault, evidence.report);
    trial.seconds = seconds_to_detection(fault, evidence);
  } else if (ready && trial.found.empty()) {
    trial.outcome = Outcome::survived;
  } else if (!trial.found.empty() && std::all_of(trial.found.begin(), trial.found.end(), of_harness)) {
    trial.outcome = Outcome::by_crash;
  } else {
    trial.outcome = Outcome::other_reason;
    trial.why = first_reason(evidence.report);
  }
  return trial;
}

Trial not_run(const Planted& fault, const std::string& why) {
  Trial trial = about(fault);
  trial.outcome = Outcome::not_run;
  trial.why = why;
  return trial;
}

std::vector<std::string> false_alarms(const Evidence& evidence) {
  if (!evidence.report.is_object()) return {evidence.trouble.empty() ? "no report" : evidence.trouble};
  std::vector<std::string> alarms;
  each_finding(evidence.report, [&](const Json& finding) {
    if (fails(finding)) add_once(alarms, text_of(finding, "code") + " " + text_of(finding, "title"));
  });
  if (alarms.empty() && !is_ready(evidence)) alarms.push_back(first_reason(evidence.report));
  return alarms;
}

std::optional<double> seconds_between(const std::string& begin, const std::string& end) {
  const auto parse = [](const std::string& text) -> std::optional<double> {
    std::tm time{};
    int millis = 0, read = 0;
    if (std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &time.tm_year, &time.tm_mon, &time.tm_mday,
                    &time.tm_hour, &time.tm_min, &time.tm_sec, &millis, &read) != 7 ||
        static_cast<std::size_t>(read) != text.size())
      return std::nullopt;
    time.tm_year -= 1900;
    time.tm_mon -= 1;
    return static_cast<double>(timegm(&time)) + millis / 1000.0;
  };
  const auto from = parse(begin), to = parse(end);
  if (!from || !to) return std::nullopt;
  return *to - *from;
}

Score score(const std::string& name, std::span<const Trial> trials) {
  Score row;
  row.name = name;
  std::vector<double> seconds;
  for (const Trial& trial : trials) {
    ++row.planted;
    switch (trial.outcome) {
      case Outcome::caught:
        ++row.caught;
        break;
      case Outcome::by_crash:
        ++row.by_crash;
        break;
      case Outcome::other_reason:
        ++row.other_reason;
        break;
      case Outcome::survived:
        ++row.survived;
        break;
      case Outcome::equivalent:
        ++row.equivalent;
        break;
      case Outcome::not_run:
        ++row.not_run;
        break;
      case Outcome::broken:
        ++row.broken;
        break;
    }
    if (trial.outcome == Outcome::caught && trial.cause_first) ++row.cause_first;
    if (trial.outcome == Outcome::caught && trial.seconds) seconds.push_back(*trial.seconds);
  }
  if (!seconds.empty()) row.median_s = base::median(seconds);
  return row;
}

std::vector<std::string> suites_of(const std::string& found_by) {
  if (found_by.find('/') != std::string::npos) return {found_by.substr(0, found_by.find('/'))};
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= found_by.size();) {
    const std::size_t end = std::min(found_by.find(',', begin), found_by.size());
    names.push_back(found_by.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::vector<Score> by_group(std::span<const Trial> trials) {
  return table(trials, [](const Trial& trial) { return std::vector{trial.group}; });
}

std::vector<Score> by_suite(std::span<const Trial> trials) {
  return table(trials, [](const Trial& trial) {
    return trial.any_code ? std::vector<std::string>{} : suites_of(trial.found_by);
  });
}

CodeScores by_code(std::span<const Trial> trials, std::span<const Planted> catalogue,
                   std::span<const std::string> codes) {
  CodeScores all;
  for (const std::string& code : codes) {
    std::size_t caught = 0, ran = 0;
    for (const Trial& trial : trials) {
      if (trial.outcome == Outcome::not_run || trial.outcome == Outcome::broken || !holds(trial.expected, code))
        continue;
      ++ran;
      if (holds(trial.found, code)) ++caught;
    }
    if (caught > 0)
      all.caught.emplace_back(code, caught);
    else if (ran > 0)
      all.silent.push_back(code);
    if (std::none_of(catalogue.begin(), catalogue.end(),
                     [&](const Planted& fault) { return holds(fault.expected_codes, code); }))
      all.unplanted.push_back(code);
  }
  return all;
}

std::vector<std::string> missed(std::span<const Trial> trials) {
  std::vector<std::string> names;
  for (const Trial& trial : trials)
    if (trial.must_catch && (trial.outcome == Outcome::survived || trial.outcome == Outcome::by_crash ||
                             trial.outcome == Outcome::other_reason))
      names.push_back(trial.fault);
  return names;
}

double clopper_pearson_upper(std::size_t events, std::size_t runs, double confidence) {
  if (events > runs) throw std::invalid_argument(fmt::format("{} events in {} runs", events, runs));
  if (events == runs) return 1;
  if (events == 0) return 1 - std::pow(1 - confidence, 1 / static_cast<double>(runs));
  double low = 0, high = 1;
  while (high - low > 1e-12) {
    const double middle = (low + high) / 2;
    (at_most(events, runs, middle) > 1 - confidence ? low : high) = middle;
  }
  return high;
}

}  // namespace suites::selftest
