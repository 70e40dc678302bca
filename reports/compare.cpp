#include "reports/compare.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "reports/compare_parts.hpp"
#include "reports/view.hpp"

namespace reports {

namespace comparing {

Runs::Runs(const std::vector<NamedRun>& runs) : runs_(runs), cases_(runs.size()), suites_(runs.size()) {
  std::set<std::string_view> ids, names;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Suite& suite : runs[i].run.suites) {
      suites_[i].emplace(suite.name, &suite);
      if (names.insert(suite.name).second) suite_names_.push_back(suite.name);
      for (const Case& c : suite.cases) {
        cases_[i].emplace(c.id, &c);
        if (ids.insert(c.id).second) case_ids_.push_back(c.id);
      }
    }
  }
}

const Case* Runs::find_case(std::size_t i, const std::string& id) const {
  const auto it = cases_[i].find(id);
  return it == cases_[i].end() ? nullptr : it->second;
}

const Suite* Runs::find_suite(std::size_t i, const std::string& name) const {
  const auto it = suites_[i].find(name);
  return it == suites_[i].end() ? nullptr : it->second;
}

bool busy(const Case& c) {
  if (!c.facts.is_object() || !c.facts.contains("load") || !c.facts.at("load").is_object()) return false;
  const Json& load = c.facts.at("load");
  return load.contains("busy") && load.at("busy") == true;
}

void add(std::vector<Difference>& rows, std::string name, std::vector<Json> values) {
  const auto other = [&](const Json& value) { return value != values.front(); };
  if (std::any_of(values.begin(), values.end(), other)) rows.push_back({std::move(name), std::move(values)});
}

namespace {

ComparedRun head_of(const NamedRun& named) {
  const Run& run = named.run;
  ComparedRun head{named.name,
                   run.id,
                   run.level,
                   run.device,
                   run.started,
                   run.duration_s,
                   assess(run),
                   count(run.suites),
                   run.complete,
                   run.interruption,
                   run.argv,
                   run.faults,
                   0};
  for (const Suite& suite : run.suites)
    head.busy_cases += static_cast<int>(std::count_if(suite.cases.begin(), suite.cases.end(), busy));
  return head;
}

void compare_verdicts(Comparison& to) {
  const auto row = [&](const char* name, auto of) {
    std::vector<Json> values;
    values.reserve(to.runs.size());
    for (const ComparedRun& run : to.runs) values.push_back(of(run));
    add(to.verdict, name, std::move(values));
  };
  row("verdict", [](const ComparedRun& run) { return Json(to_string(run.assessment.verdict)); });
  row("exit code", [](const ComparedRun& run) { return Json(static_cast<int>(run.assessment.exit_code)); });
  row("has its end", [](const ComparedRun& run) { return Json(run.complete); });
  row("interrupted by",
      [](const ComparedRun& run) { return run.interruption ? Json(static_cast<int>(*run.interruption)) : Json(); });
}

// Another rank is a difference where it is the first one: behind it causes only move up and down with each other.
void compare_causes(const Runs& runs, Comparison& to) {
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (const LikelyCause& cause : runs.at(i).causes)
      if (std::find(ids.begin(), ids.end(), cause.id) == ids.end()) ids.push_back(cause.id);
  for (const std::string& id : ids) {
    Difference row{id, {}};
    std::set<std::string> different;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto& causes = runs.at(i).causes;
      const auto it =
          std::find_if(causes.begin(), causes.end(), [&](const LikelyCause& cause) { return cause.id == id; });
      Json value;
      if (it != causes.end())
        value = {{"rank", it - causes.begin() + 1}, {"severity", to_string(it->severity)}, {"what", it->what}};
      row.values.push_back(value);
      if (it != causes.begin() && it != causes.end()) value["rank"] = nullptr;
      different.insert(dump(value));
    }
    if (different.size() > 1) to.causes.push_back(std::move(row));
  }
}

// Cases that were planned in one run only stand in the plan.
void compare_outcomes(const Runs& runs, Comparison& to) {
  for (const std::string& id : runs.case_ids()) {
    std::vector<Json> values;
    std::set<std::string> different;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Case* c = runs.find_case(i, id);
      values.push_back(c == nullptr ? Json()
                                    : Json{{"status", to_string(outcome(*c))}, {"reason_code", c->reason_code}});
      if (c != nullptr) different.insert(dump(values.back()));
    }
    if (different.size() > 1) to.outcomes.push_back({id, std::move(values)});
  }
}

// What a case's fact "routes" says of each function: "cuda/in_one (joint)".
void add_ways(const Case& c, std::map<std::string, std::set<std::string>>& to) {
  if (!c.facts.is_object() || !c.facts.contains("routes") || !c.facts.at("routes").is_array()) return;
  for (const Json& route : c.facts.at("routes")) {
    if (!route.is_object()) continue;
    const auto word = [&](const char* key) {
      return route.contains(key) && route.at(key).is_string() ? route.at(key).get<std::string>() : std::string();
    };
    const std::string variant = word("variant"), kernels = fmt::format("{}", fmt::join(view::kernels_of(route), "; "));
    to[word("op")].insert(fmt::format("{}{}{}", word("backend"), variant.empty() ? "" : "/" + variant,
                                      kernels.empty() ? "" : fmt::format(" ({})", kernels)));
  }
}

void compare_ways(const Runs& runs, Comparison& to) {
  std::vector<std::map<std::string, std::set<std::string>>> ways(runs.size());
  std::set<std::string> functions;
  for (const std::string& id : runs.case_ids()) {
    bool in_all = true;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Case* c = runs.find_case(i, id);
      in_all = in_all && c != nullptr && executed(outcome(*c));
    }
    for (std::size_t i = 0; in_all && i < runs.size(); ++i) add_ways(*runs.find_case(i, id), ways[i]);
  }
  for (const auto& by_function : ways)
    for (const auto& [function, taken] : by_function) functions.insert(function);
  for (const std::string& function : functions) {
    std::vector<Json> values;
    for (const auto& by_function : ways) {
      const auto it = by_function.find(function);
      values.push_back(it == by_function.end() ? Json() : Json(it->second));
    }
    add(to.ways, function, std::move(values));
  }
}

// The checks of one case by name; where a name comes up again, by its number.
std::vector<CheckRow> checks_of(const std::string& id, const Runs& runs) {
  std::vector<CheckRow> rows;
  std::unordered_map<std::string, std::size_t> where;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Case* c = runs.find_case(i, id);
    if (c == nullptr) continue;
    std::unordered_map<std::string, int> times;
    for (const Check& check : c->checks) {
      const int time = ++times[check.name];
      const std::string name = time == 1 ? check.name : fmt::format("{} ({})", check.name, time);
      const auto [place, fresh] = where.try_emplace(name, rows.size());
      if (fresh) rows.push_back({id, name, std::vector<Json>(runs.size())});
      rows[place->second].values[i] = {{"pass", check.pass}, {"comparator", check.comparator}, {"bound", check.bound}};
    }
  }
  return rows;
}

// Whether it holds, and what is asked for. What was measured is the figures' business; what a case did not come to, the
// outcomes'.
void compare_checks(const Runs& runs, Comparison& to) {
  for (const std::string& id : runs.case_ids()) {
    for (CheckRow& row : checks_of(id, runs)) {
      std::set<std::string> different;
      std::set<bool> passes;
      for (const Json& value : row.values) {
        if (value.is_null()) continue;
        different.insert(dump(value));
        passes.insert(value.at("pass").get<bool>());
      }
      row.decides = passes.size() > 1;
      if (different.size() > 1) to.checks.push_back(std::move(row));
    }
  }
}

bool not_reached(const Json& outcome) {
  const std::string status = outcome.at("status");
  return status == to_string(Status::not_run) || status == to_string(Status::cancelled);
}

bool told_twice(const CheckRow& row, std::size_t step) {
  return !row.values[step].is_null() && !row.values[step + 1].is_null();
}

// Results that differ although both runs could tell them.
int count_results(const Comparison& all, std::size_t step) {
  int count = 0;
  const bool both_ended = all.runs[step].ended() && all.runs[step + 1].ended();
  for (const Difference& row : all.verdict)
    if (row.name == "verdict" && both_ended && differs(row, step)) ++count;
  for (const FindingRow& row : all.findings) {
    const FindingRow::Step& s = row.steps[step];
    const bool elsewhere =
        std::any_of(s.what.begin(), s.what.end(), [](const std::string& what) { return what != "evidence"; });
    if (s.change == FindingRow::Change::appeared || s.change == FindingRow::Change::gone || elsewhere) ++count;
  }
  for (const Difference& row : all.outcomes) {
    const Json &before = row.values[step], &now = row.values[step + 1];
    if (before.is_null() || now.is_null() || before == now) continue;
    if (!not_reached(before) && !not_reached(now)) ++count;
  }
  for (const Difference& row : all.ways)
    if (differs(row, step)) ++count;
  for (const CheckRow& row : all.checks)
    if (told_twice(row, step) && row.values[step].at("pass") != row.values[step + 1].at("pass")) ++count;
  for (const Figure& figure : all.figures) {
    const auto change = figure.steps[step].change;
    if (change == Figure::Change::changed || change == Figure::Change::not_finite ||
        change == Figure::Change::missing || change == Figure::Change::other_unit)
      ++count;
  }
  return count;
}

int count_not_judged(const Comparison& all, std::size_t step) {
  const auto figures = std::count_if(all.figures.begin(), all.figures.end(), [&](const Figure& figure) {
    return figure.steps[step].change == Figure::Change::no_interval ||
           figure.steps[step].change == Figure::Change::machine_busy;
  });
  const auto findings = std::count_if(all.findings.begin(), all.findings.end(), [&](const FindingRow& row) {
    return row.steps[step].what == std::vector<std::string>{"evidence"};
  });
  const auto bounds = std::count_if(all.checks.begin(), all.checks.end(), [&](const CheckRow& row) {
    return told_twice(row, step) && row.values[step] != row.values[step + 1] &&
           row.values[step].at("pass") == row.values[step + 1].at("pass");
  });
  return static_cast<int>(figures + findings + bounds);
}

// Figures without an interval that are no times, nor ratios beside times: of the same inputs and the same seed they
// would be the same, bit for bit.
int count_inexact(const Comparison& all, std::size_t step) {
  const auto unit = [&](const Figure& figure) -> const std::string& { return figure.by_run[step].unit; };
  std::set<std::string_view> timed;
  for (const Figure& figure : all.figures)
    if (view::is_speed(unit(figure))) timed.insert(figure.where);
  return static_cast<int>(std::count_if(all.figures.begin(), all.figures.end(), [&](const Figure& figure) {
    const bool ratio = unit(figure).empty() || unit(figure) == "1";
    return figure.steps[step].change == Figure::Change::no_interval && !view::is_speed(unit(figure)) &&
           !(ratio && timed.contains(figure.where));
  }));
}

std::string about_load(const Comparison& all, std::size_t step) {
  std::string text;
  for (const std::size_t i : {step, step + 1})
    if (const int n = all.runs[i].busy_cases; n > 0)
      text += fmt::format("; others were at work on the machine in {} of run {}",
                          view::plural(static_cast<std::size_t>(n), "case"), i + 1);
  return text;
}

std::string about_ends(const Comparison& all, std::size_t step) {
  std::string text;
  for (const std::size_t i : {step, step + 1})
    if (!all.runs[i].ended()) text += fmt::format("; run {} is unfinished", i + 1);
  return text;
}

// One sentence when what went in and what came out do not fit together, nothing is different, or nothing was compared.
std::string sentence(const Comparison& all, std::size_t step, const ComparedStep& counted) {
  if (counted.in_both == 0)
    return fmt::format("No case ran in both: nothing of what came out can be compared{}.", about_ends(all, step));
  if (counted.went_in > 0 && counted.came_out > 0) return "";
  std::string in = "Nothing that is recorded of what went in differs";
  if (counted.origins > 0) in += " but where settings came from";
  if (counted.went_in == 0 && counted.came_out > 0)
    return fmt::format("{}, and the results do: they are not repeatable, or it is a matter of the machine{}{}.", in,
                       about_load(all, step), about_ends(all, step));
  std::string open = counted.not_judged == 0 ? "" : fmt::format(" ({} cannot)", counted.not_judged);
  if (counted.went_in == 0 && counted.inexact > 0)
    open += fmt::format("; {} not the same bit for bit",
                        counted.inexact == 1 ? "1 figure that is no time is"
                                             : fmt::format("{} figures that are no times are", counted.inexact));
  return fmt::format("{}, and nothing of what came out does that can be judged{}{}.",
                     counted.went_in > 0 ? "What went in differs" : in, open, about_ends(all, step));
}

int count_in_both(const Runs& runs, std::size_t step) {
  const auto ran = [&](std::size_t i, const std::string& id) {
    const Case* c = runs.find_case(i, id);
    return c != nullptr && executed(outcome(*c));
  };
  return static_cast<int>(std::count_if(runs.case_ids().begin(), runs.case_ids().end(),
                                        [&](const std::string& id) { return ran(step, id) && ran(step + 1, id); }));
}

ComparedStep judge(const Runs& runs, const Comparison& all, std::size_t step) {
  ComparedStep counted;
  counted.in_both = count_in_both(runs, step);
  for (const std::vector<Difference>* rows : {&all.environment, &all.configuration, &all.plan}) {
    for (const Difference& row : *rows) {
      if (differs_in_effect(row, step))
        ++counted.went_in;
      else if (differs(row, step))
        ++counted.origins;
    }
  }
  counted.came_out = count_results(all, step);
  counted.not_judged = count_not_judged(all, step);
  counted.inexact = count_inexact(all, step);
  counted.verdict = sentence(all, step, counted);
  return counted;
}

void refuse_the_same(const std::vector<NamedRun>& runs) {
  if (runs.size() < 2)
    throw std::invalid_argument(runs.empty() ? "no run to compare"
                                             : fmt::format("{}: one run only; give two or more", runs[0].name));
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (runs[i].run.id == runs[j].run.id)
        throw std::invalid_argument(fmt::format("{} and {} are the same run, {}; give two different ones", runs[j].name,
                                                runs[i].name, view::one_line(runs[i].run.id)));
}

}  // namespace
}  // namespace comparing

bool differs(const Difference& row, std::size_t step) { return row.values[step] != row.values[step + 1]; }

bool differs_in_effect(const Difference& row, std::size_t step) {
  const auto effect = [](const Json& value) {
    return value.is_object() && value.contains("value") && value.contains("origin") ? value.at("value") : value;
  };
  return effect(row.values[step]) != effect(row.values[step + 1]);
}

Comparison compare(const std::vector<NamedRun>& runs) {
  comparing::refuse_the_same(runs);
  const comparing::Runs all(runs);
  Comparison comparison;
  for (const NamedRun& run : runs) comparison.runs.push_back(comparing::head_of(run));
  comparing::compare_inputs(all, comparison);
  comparing::compare_verdicts(comparison);
  comparing::compare_causes(all, comparison);
  comparing::compare_findings(all, comparison);
  comparing::compare_outcomes(all, comparison);
  comparing::compare_ways(all, comparison);
  comparing::compare_checks(all, comparison);
  comparing::compare_figures(all, comparison);
  for (std::size_t step = 0; step + 1 < runs.size(); ++step)
    comparison.steps.push_back(comparing::judge(all, comparison, step));
  return comparison;
}

std::string_view to_string(FindingRow::Seen seen) {
  switch (seen) {
    case FindingRow::Seen::found:
      return "found";
    case FindingRow::Seen::clean:
      return "clean";
    case FindingRow::Seen::no_answer:
      return "no_answer";
  }
  throw std::logic_error("FindingRow::Seen outside its enumeration");
}

std::string_view to_string(FindingRow::Change change) {
  switch (change) {
    case FindingRow::Change::none:
      return "none";
    case FindingRow::Change::same:
      return "same";
    case FindingRow::Change::changed:
      return "changed";
    case FindingRow::Change::appeared:
      return "new";
    case FindingRow::Change::gone:
      return "gone";
    case FindingRow::Change::first_told:
      return "first_told";
    case FindingRow::Change::no_longer_told:
      return "no_longer_told";
  }
  throw std::logic_error("FindingRow::Change outside its enumeration");
}

std::string_view to_string(Figure::Change change) {
  switch (change) {
    case Figure::Change::same:
      return "same";
    case Figure::Change::changed:
      return "changed";
    case Figure::Change::within_noise:
      return "within_noise";
    case Figure::Change::no_interval:
      return "no_interval";
    case Figure::Change::machine_busy:
      return "machine_busy";
    case Figure::Change::not_finite:
      return "not_finite";
    case Figure::Change::missing:
      return "missing";
    case Figure::Change::other_unit:
      return "other_unit";
    case Figure::Change::not_run:
      return "not_run";
  }
  throw std::logic_error("Figure::Change outside its enumeration");
}

}  // namespace reports
