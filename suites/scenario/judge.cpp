#include "suites/scenario/judge.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/compare.hpp"
#include "harness/plan.hpp"
#include "reports/status.hpp"

namespace suites::scenario {

namespace {

using reports::Case;
using reports::Finding;
using reports::Run;
using reports::Status;
using Kind = Look::Kind;

Answer ok(std::string seen) { return {State::ok, std::move(seen)}; }
Answer missing(std::string seen) { return {State::missing, std::move(seen)}; }
Answer not_shown(std::string seen) { return {State::not_shown, std::move(seen)}; }

bool holds(const std::string& text, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return text.find(name) != std::string::npos; });
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : reports::dump(value); }

bool meets(const Json& value, const Wanted& wanted) {
  if (wanted.is && value != *wanted.is) return false;
  if (wanted.at_least || wanted.at_most) {
    const std::optional<double> number = reports::as_number(value);
    if (!number) return false;
    if (wanted.at_least && !harness::at_least(*number, *wanted.at_least)) return false;
    if (wanted.at_most && !harness::at_most(*number, *wanted.at_most)) return false;
  }
  return holds(text_of(value), wanted.names);
}

std::string in_words(const Wanted& wanted) {
  std::vector<std::string> parts;
  if (wanted.is) parts.push_back(reports::dump(*wanted.is));
  if (wanted.at_least) parts.push_back(fmt::format("at least {:g}", *wanted.at_least));
  if (wanted.at_most) parts.push_back(fmt::format("at most {:g}", *wanted.at_most));
  if (!wanted.names.empty()) parts.push_back(fmt::format("named: {}", fmt::join(wanted.names, ", ")));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<const Case*> cases_of(const Run& run, const std::string& where) {
  std::vector<const Case*> all;
  for (const reports::Suite& suite : run.suites)
    for (const Case& c : suite.cases)
      if (harness::matches(where, c.id)) all.push_back(&c);
  return all;
}

bool ran(const Case& c) { return reports::executed(reports::outcome(c)); }
bool cannot_tell(const Case& c) { return reports::outcome(c) == Status::inconclusive; }

// Where nothing was found: did anybody look?
Answer nothing_found(const std::vector<const Case*>& cases, const std::string& what) {
  for (const Case* c : cases)
    if (cannot_tell(*c)) return not_shown(fmt::format("{} cannot tell: {}", c->id, c->reason));
  const auto lacks_gpu = [](const Case* c) { return !ran(*c) && c->reason_code == "no_cuda"; };
  if (!cases.empty() && std::all_of(cases.begin(), cases.end(), lacks_gpu))
    return not_shown(fmt::format("{}: {}", cases.front()->id, cases.front()->reason));
  return missing(what);
}

std::string told(const Finding& finding, const std::string& where) {
  return fmt::format("{} {}: {}", finding.code, where, finding.message);
}

Answer finding(const Look& look, const Run& run) {
  std::string other;  // the code, but not what must be named
  const auto right = [&](const Finding& one, const std::string& where) {
    if (one.code != look.code) return false;
    if (holds(one.message + " " + reports::dump(one.evidence), look.wanted.names)) return true;
    other = told(one, where);
    return false;
  };
  const std::vector<const Case*> cases = cases_of(run, look.where);
  for (const Case* c : cases)
    for (const Finding& one : c->findings)
      if (right(one, c->id)) return ok(told(one, c->id));
  if (look.where == "*")
    for (const Finding& one : run.findings)
      if (right(one, "the run")) return ok(told(one, "the run"));
  if (!other.empty()) return missing(fmt::format("{}; it must name {}", other, fmt::join(look.wanted.names, ", ")));
  return nothing_found(cases, fmt::format("no {} in {}", look.code, look.where));
}

Answer clean(const Look& look, const Run& run) {
  const std::vector<const Case*> cases = cases_of(run, look.where);
  std::size_t passed = 0;
  for (const Case* c : cases) {
    for (const Finding& one : c->findings)
      if (look.code.empty() ? reports::failing(one.severity) : one.code == look.code) return missing(told(one, c->id));
    if (!ran(*c)) continue;
    const Status outcome = reports::outcome(*c);
    // A case with another code's finding has run and is clean of this one; one that broke off is clean of nothing.
    if (outcome == Status::pass || (!look.code.empty() && outcome == Status::fail))
      ++passed;
    else
      return nothing_found({c}, fmt::format("{} ended as {}", c->id, reports::to_string(outcome)));
  }
  if (passed == 0) return nothing_found(cases, fmt::format("no case of {} ran", look.where));
  return ok(fmt::format("{} case(s) of {} ran without {}", passed, look.where,
                        look.code.empty() ? "a failing finding" : look.code));
}

Answer outcome(const Look& look, const Run& run) {
  const std::vector<const Case*> cases = cases_of(run, look.where);
  std::size_t right = 0;
  for (const Case* c : cases) {
    const Status is = reports::outcome(*c);
    if (reports::to_string(is) == look.word)
      ++right;
    else if (ran(*c))
      return nothing_found({c}, fmt::format("{} ended as {}", c->id, reports::to_string(is)));
  }
  if (right == 0) return nothing_found(cases, fmt::format("no case of {} ended as {}", look.where, look.word));
  return ok(fmt::format("{} case(s) of {}: {}", right, look.where, look.word));
}

Answer metric(const Look& look, const Run& run) {
  const std::vector<const Case*> cases = cases_of(run, look.where);
  std::vector<std::string> seen;
  for (const Case* c : cases)
    for (const reports::Metric& one : c->metrics) {
      if (!harness::matches(look.key, one.name)) continue;
      seen.push_back(fmt::format("{} {} {}", one.name, text_of(one.value), one.unit));
      // Of a case that cannot tell, a figure that is out of bounds accuses nobody.
      if (!meets(one.value, look.wanted))
        return nothing_found({c}, fmt::format("{}: {}; wanted {}", c->id, seen.back(), in_words(look.wanted)));
    }
  if (seen.empty()) return nothing_found(cases, fmt::format("no figure {} in {}", look.key, look.where));
  return ok(fmt::format("{}", fmt::join(seen, ", ")));
}

// `value` at `pointer`, if it is there.
const Json* at(const Json& value, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  return value.contains(place) ? &value.at(place) : nullptr;
}

Answer fact(const Look& look, const Run& run) {
  const std::vector<const Case*> cases = cases_of(run, look.where);
  std::string other;
  for (const Case* c : cases) {
    const auto it = c->facts.find(look.key);
    if (it == c->facts.end()) continue;
    const Json* value = at(*it, look.at);
    if (value == nullptr) continue;
    const std::string seen = fmt::format("{} {}{}: {}", c->id, look.key, look.at, text_of(*value));
    if (meets(*value, look.wanted)) return ok(seen);
    other = fmt::format("{}; wanted {}", seen, in_words(look.wanted));
  }
  if (!other.empty()) return missing(other);
  return nothing_found(cases, fmt::format("no fact {}{} in {}", look.key, look.at, look.where));
}

Answer record(const Look& look, const Run& run) {
  const Json* value = at(run.provenance, look.at);
  if (value == nullptr) return missing(fmt::format("the record has no {}", look.at));
  const std::string seen = fmt::format("{}: {}", look.at, text_of(*value));
  return meets(*value, look.wanted) ? ok(seen) : missing(fmt::format("{}; wanted {}", seen, in_words(look.wanted)));
}

Answer not_tested(const Look& look, const Run& run) {
  for (const std::string& sentence : reports::assess(run).not_tested)
    if (holds(sentence, look.wanted.names)) return ok("not tested: " + sentence);
  return missing(fmt::format("no sentence of what was not tested names {}", fmt::join(look.wanted.names, ", ")));
}

Answer verdict(const Look& look, const Run& run) {
  const std::string is(reports::to_string(reports::assess(run).verdict));
  return is == look.word ? ok(is) : missing(is);
}

using Change = reports::FindingRow::Change;

Answer compared(const Look& look, const reports::Comparison& comparison) {
  std::vector<std::string> seen;
  for (const reports::FindingRow& row : comparison.findings) {
    if (row.code != look.code || row.steps.front().change == Change::none) continue;
    const bool there = std::any_of(row.by_run.begin(), row.by_run.end(),
                                   [&](const auto& one) { return harness::matches(look.where, one.where); });
    if (!there) continue;
    const std::string word(reports::to_string(row.steps.front().change));
    const auto& last = row.by_run.back().where.empty() ? row.by_run.front() : row.by_run.back();
    seen.push_back(fmt::format("{} in {}: {}", row.code, last.where, word));
    if (word == look.word) return ok(fmt::format("from {} to {}: {}", look.from, look.attempt, seen.back()));
  }
  return missing(seen.empty() ? fmt::format("{} in neither of {} and {}", look.code, look.from, look.attempt)
                              : fmt::format("{}; wanted {}", fmt::join(seen, "; "), look.word));
}

Answer went_in(const Look& look, const reports::Comparison& comparison) {
  for (const auto* rows : {&comparison.environment, &comparison.configuration, &comparison.plan})
    for (const reports::Difference& row : *rows)
      if (row.name == look.key)
        return ok(fmt::format("{}: {} in {}, {} in {}", row.name, text_of(row.values.front()), look.from,
                              text_of(row.values.back()), look.attempt));
  return missing(fmt::format("{} does not differ between {} and {}", look.key, look.from, look.attempt));
}

const Ran& ran_as(const std::string& name, const std::vector<Ran>& all) {
  return *std::find_if(all.begin(), all.end(), [&](const Ran& one) { return one.attempt == name; });
}

Answer of_one(const Look& look, const Run& run) {
  switch (look.kind) {
    case Kind::finding:
      return finding(look, run);
    case Kind::clean:
      return clean(look, run);
    case Kind::outcome:
      return outcome(look, run);
    case Kind::metric:
      return metric(look, run);
    case Kind::told:
      return fact(look, run);
    case Kind::record:
      return record(look, run);
    case Kind::not_tested:
      return not_tested(look, run);
    case Kind::verdict:
      return verdict(look, run);
    case Kind::compared:
    case Kind::went_in:
      break;
  }
  throw std::logic_error("a comparison is of two runs");
}

Answer silent(const Ran& one) {
  return not_shown(one.not_run.empty() ? fmt::format("attempt {} is broken", one.attempt)
                                       : fmt::format("attempt {} was not run: {}", one.attempt, one.not_run));
}

// All looks must be answered; the worst answer is the fact's.
Answer of_fact(const Fact& fact, const Scenario& scenario, const std::vector<Ran>& all, const std::string& device) {
  if (!fact.beyond.empty()) return not_shown(fact.beyond);
  if (!fact.needs_gpu.empty() && device != "cuda") return not_shown("needs a GPU: " + fact.needs_gpu);
  Answer whole = ok("");
  for (const Look& look : fact.looks) {
    const Answer one = answer(look, scenario, all);
    if (one.state == State::missing || (one.state == State::not_shown && whole.state == State::ok)) whole = one;
    if (whole.state == State::missing) return whole;
    if (whole.state == State::ok) whole.seen += (whole.seen.empty() ? "" : "; ") + one.seen;
  }
  return whole;
}

bool names(const reports::LikelyCause& cause, const Cause& wanted) {
  const auto is = [&](const std::string& word) {
    return cause.id == word || std::find(cause.codes.begin(), cause.codes.end(), word) != cause.codes.end();
  };
  return std::any_of(wanted.of.begin(), wanted.of.end(), is) &&
         holds(fmt::format("{} {}", cause.what, fmt::join(cause.because, " ")), wanted.names);
}

std::string number(const Result& result) { return fmt::format("cause-{}", result.causes.size() + 1); }

// Why the report cannot name it: a case was about to, and could not tell (times on a busy machine).
Answer not_named(const Cause& wanted, const Run& run) {
  for (const Case* c : cases_of(run, "*"))
    for (const std::string& word : wanted.of)
      if (cannot_tell(*c) && c->reason.find(word) != std::string::npos)
        return not_shown(fmt::format("{} cannot tell: {}", c->id, c->reason));
  return missing(fmt::format("the report names no such cause ({})", fmt::join(wanted.of, " or ")));
}

void judge_causes(const Scenario& scenario, const Run& run, const std::string& device, Result& result) {
  std::size_t next = 0;  // causes before it have had their turn
  std::vector<bool> used(run.causes.size(), false);
  for (const Cause& wanted : scenario.causes) {
    if (!wanted.needs_gpu.empty() && device != "cuda") {
      result.causes.push_back({number(result), wanted.said, not_shown("needs a GPU: " + wanted.needs_gpu)});
      continue;
    }
    Answer answer = not_named(wanted, run);
    for (std::size_t i = 0; i < run.causes.size() && answer.state != State::ok; ++i) {
      if (used[i] || !names(run.causes[i], wanted)) continue;
      used[i] = true;
      const std::string seen = fmt::format("{}. {} ({})", i + 1, run.causes[i].what, run.causes[i].id);
      answer = i >= next ? ok(seen) : missing(seen + ": not in this order");
      next = std::max(next, i + 1);
      break;
    }
    result.causes.push_back({number(result), wanted.said, answer});
  }
  for (std::size_t i = 0; i < run.causes.size(); ++i)
    if (!used[i]) result.besides.push_back(fmt::format("{}. {} ({})", i + 1, run.causes[i].what, run.causes[i].id));
}

int exit_code_of(const Result& result) {
  reports::ExitCode code = reports::ExitCode::ready;
  if (!result.broken.empty()) code = reports::worse(code, reports::ExitCode::infrastructure);
  if (result.count(State::missing) > 0) code = reports::worse(code, reports::ExitCode::failed);
  if (result.count(State::not_shown) > 0) code = reports::worse(code, reports::ExitCode::inconclusive);
  return static_cast<int>(code);
}

}  // namespace

std::string_view to_string(State state) {
  switch (state) {
    case State::ok:
      return "ok";
    case State::missing:
      return "MISSING";
    case State::not_shown:
      return "not shown";
  }
  return "";
}

std::string not_as_asked(const Attempt& attempt, const Run& run, int exit_code, const std::string& device) {
  if (!run.complete || run.interruption) return "the run did not come to its own end";
  if (run.device != device) return fmt::format("the run is on {}, not on {}", run.device, device);
  const Json planted = run.faults.is_array() ? run.faults : Json::array();
  if (planted != Json(attempt.inject))
    return fmt::format("planted are {}, asked for were {}", reports::dump(planted),
                       reports::dump(Json(attempt.inject)));
  Json set = Json::object();
  if (const Json* there = at(run.provenance, "/flags/set"); there != nullptr) set = *there;
  for (const auto& [name, value] : attempt.flags)
    if (!set.contains(name) || set[name] != value) return fmt::format("{}={} is not set in the run", name, value);
  if (set.size() != attempt.flags.size()) return "flags are set that the attempt does not name: " + reports::dump(set);
  if (const int own = static_cast<int>(reports::assess(run).exit_code); own != exit_code)
    return fmt::format("it ended with exit code {}, and its journal says {}", exit_code, own);
  return "";
}

std::size_t Result::count(State state) const {
  const auto is = [&](const Told& one) { return one.answer.state == state; };
  return static_cast<std::size_t>(std::count_if(causes.begin(), causes.end(), is) +
                                  std::count_if(facts.begin(), facts.end(), is) + (verdict.state == state ? 1 : 0));
}

Answer answer(const Look& look, const Scenario& scenario, const std::vector<Ran>& all) {
  const Ran& one = ran_as(look.attempt.empty() ? scenario.judged : look.attempt, all);
  if (!one.says_something()) return silent(one);
  if (look.from.empty()) return of_one(look, one.run.run);
  const Ran& before = ran_as(look.from, all);
  if (!before.says_something()) return silent(before);
  const reports::Comparison comparison = reports::compare({before.run, one.run});
  return look.kind == Kind::compared ? compared(look, comparison) : went_in(look, comparison);
}

Result judge(const Scenario& scenario, const std::vector<Ran>& all, const std::string& device) {
  Result result;
  result.device = device;
  for (const Ran& one : all)
    if (!one.trouble.empty()) result.broken.push_back(fmt::format("{}: {}", one.attempt, one.trouble));
  const Ran& judged = ran_as(scenario.judged, all);
  if (judged.says_something()) {
    const std::string is(reports::to_string(reports::assess(judged.run.run).verdict));
    const bool right = is == scenario.verdict && judged.exit_code == scenario.exit_code_on(device);
    result.verdict = {right ? State::ok : State::missing, fmt::format("{}, exit code {}", is, judged.exit_code)};
    judge_causes(scenario, judged.run.run, device, result);
  } else {
    result.verdict = silent(judged);
    for (const Cause& cause : scenario.causes) result.causes.push_back({number(result), cause.said, result.verdict});
  }
  for (const Fact& one : scenario.facts)
    result.facts.push_back({one.id, one.said, of_fact(one, scenario, all, device)});
  result.exit_code = exit_code_of(result);
  return result;
}

void must_be_planned(const Scenario& scenario, const std::vector<std::vector<std::string>>& planned,
                     const std::string& file) {
  const auto plans = [&](const std::string& attempt, const std::string& where) {
    for (std::size_t i = 0; i < scenario.attempts.size(); ++i)
      if (scenario.attempts[i].name == attempt)
        return std::any_of(planned[i].begin(), planned[i].end(),
                           [&](const std::string& id) { return harness::matches(where, id); });
    return false;
  };
  for (const Fact& fact : scenario.facts)
    for (const Look& look : fact.looks) {
      if (look.where == "*") continue;
      const std::string& attempt = look.attempt.empty() ? scenario.judged : look.attempt;
      if (!plans(attempt, look.where))
        throw ScenarioError(fmt::format("{}: fact {}: case '{}' matches nothing that attempt '{}' plans", file, fact.id,
                                        look.where, attempt),
                            false);
    }
}

}  // namespace suites::scenario
