#include "suites/selftest/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace suites::selftest {

namespace {

std::string of(std::size_t part, std::size_t all) {
  return all == 0 ? "-"
                  : fmt::format("{} of {} ({:.0f} %)", part, all,
                                100.0 * static_cast<double>(part) / static_cast<double>(all));
}

std::string seconds_or(const std::optional<double>& seconds) { return seconds ? fmt::format("{:.1f}", *seconds) : "-"; }

std::string detail(const Trial& trial) {
  switch (trial.outcome) {
    case Outcome::caught: {
      std::vector<std::string> named;
      for (const std::string& code : trial.found)
        if (trial.any_code || std::find(trial.expected.begin(), trial.expected.end(), code) != trial.expected.end())
          named.push_back(code);
      return fmt::format("{}{}{}", named.empty() ? "by its exit code" : fmt::format("{}", fmt::join(named, " ")),
                         trial.any_code      ? ", in " + trial.first_suite
                         : trial.cause_first ? ", cause first"
                                             : ", another cause first",
                         trial.seconds ? fmt::format(", {:.1f} s", *trial.seconds) : "");
    }
    case Outcome::by_crash:
    case Outcome::other_reason:
      if (trial.any_code)
        return fmt::format("{}{}; {}", trial.found.empty() ? trial.why : fmt::format("{}", fmt::join(trial.found, " ")),
                           trial.first_suite.empty() ? "" : ", in " + trial.first_suite, trial.what);
      return fmt::format("{}; expected {}",
                         trial.found.empty() ? trial.why : fmt::format("{}", fmt::join(trial.found, " ")),
                         fmt::join(trial.expected, " or "));
    case Outcome::survived:
      if (trial.any_code) return fmt::format("{}; {}", trial.reached ? "computed" : "never computed", trial.what);
      return fmt::format("READY; expected {}", fmt::join(trial.expected, " or "));
    case Outcome::equivalent:
    case Outcome::not_run:
    case Outcome::broken:
      return trial.why;
  }
  return "";
}

std::string table(const char* title, const std::vector<Score>& rows) {
  if (rows.empty()) return "";
  std::string text =
      fmt::format("{:16} {:>7} {:>7} {:>8} {:>7} {:>9} {:>10} {:>8} {:>7} {:>12} {:>9}\n", title, "planted", "caught",
                  "by crash", "other", "survived", "equivalent", "not run", "broken", "cause first", "median s");
  for (const Score& row : rows)
    text += fmt::format("{:16} {:>7} {:>7} {:>8} {:>7} {:>9} {:>10} {:>8} {:>7} {:>12} {:>9}\n", row.name, row.planted,
                        row.caught, row.by_crash, row.other_reason, row.survived, row.equivalent, row.not_run,
                        row.broken, row.cause_first, seconds_or(row.median_s));
  return text + "\n";
}

// "what: a b c", in lines of some width.
std::string list(const std::string& what, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  constexpr std::size_t kWidth = 110;
  std::string text, line = what + ":";
  for (const std::string& name : names) {
    if (line.size() + 1 + name.size() > kWidth) {
      text += line + "\n";
      line = "   ";
    }
    line += " " + name;
  }
  return text + line + "\n";
}

// Those that are nobody's catch, with the command that shows each.
std::string not_caught(const std::vector<Trial>& trials) {
  std::string text;
  for (const Trial& trial : trials) {
    if (trial.outcome == Outcome::caught || trial.outcome == Outcome::equivalent || trial.outcome == Outcome::not_run)
      continue;
    text +=
        fmt::format("  {}{}\n    {}\n", line_of(trial), trial.must_catch ? "  [must be caught]" : "", trial.command);
  }
  return text.empty() ? "" : "not caught:\n" + text;
}

// What is said of mutants of the sources alone; "" where there was none.
std::string sources_text(const Result& result) {
  const std::vector<Score> kinds = by_kind(result.trials);
  if (kinds.empty()) return "";
  const Noticed all = noticed(result.trials);
  std::string text = table("mutation", kinds) + table("noticed first by", by_first_suite(result.trials));
  std::vector<std::string> codes;
  for (const auto& [code, count] : all.codes) codes.push_back(fmt::format("{} ({})", code, count));
  text +=
      list("codes raised, by how many mutants", codes) + list("suites that ran and noticed nothing", all.silent_suites);
  text += fmt::format("{} of {} cases that ran noticed nothing\n", all.silent_cases.size(),
                      all.silent_cases.size() + all.cases.size());
  return text + list("MARKED EQUIVALENT AND NOTICED", wrongly_marked(result.trials, result.equivalents)) +
         list("marked equivalent, and no mutant of this program", result.marked_in_vain);
}

std::string clean_text(const Clean& clean) {
  if (clean.runs == 0) return "clean runs: none, so nothing is known of false alarms\n";
  std::string text =
      fmt::format("clean runs: {}, of which {} raised an alarm; at 95 % the rate of false alarms is at most {:.3g}\n",
                  clean.runs, clean.alarmed, clopper_pearson_upper(clean.alarmed, clean.runs));
  for (const std::string& alarm : clean.alarms) text += fmt::format("  false alarm: {}\n", alarm);
  for (const std::string& broken : clean.broken) text += fmt::format("  broken: {}\n", broken);
  return text;
}

std::string comparison_text(const Comparison& c, const std::string& baseline) {
  return fmt::format("against {}: {}\n", baseline, c.worse() ? "WORSE" : "no worse") +
         list("  was caught and is not", c.lost) + list("  its cause was right first and is not", c.cause_lost) +
         list("  is not in the catalogue any more", c.gone) +
         list("  is caught now (write the baseline again)", c.gained) +
         list("  new (write the baseline again)", c.fresh);
}

Json json_of(const Score& row) {
  return {{"name", row.name},
          {"planted", row.planted},
          {"caught", row.caught},
          {"by_crash", row.by_crash},
          {"other_reason", row.other_reason},
          {"survived", row.survived},
          {"equivalent", row.equivalent},
          {"not_run", row.not_run},
          {"broken", row.broken},
          {"cause_first", row.cause_first},
          {"median_s", row.median_s ? Json(*row.median_s) : Json()}};
}

Json json_of(const std::vector<Score>& rows) {
  Json all = Json::array();
  for (const Score& row : rows) all.push_back(json_of(row));
  return all;
}

Json json_of(const Trial& trial) {
  return {{"name", trial.fault},
          {"group", trial.group},
          {"found_by", trial.found_by},
          {"must_catch", trial.must_catch},
          {"any_code", trial.any_code},
          {"what", trial.what},
          {"reached", trial.any_code ? Json(trial.reached) : Json()},
          {"first_suite", trial.first_suite},
          {"noticed_by", trial.noticed},
          {"outcome", to_string(trial.outcome)},
          {"cause_first", trial.cause_first},
          {"detected_s", trial.seconds ? Json(*trial.seconds) : Json()},
          {"expected", trial.expected},
          {"found", trial.found},
          {"why", trial.why},
          {"command", trial.command},
          {"folder", trial.folder},
          {"wall_s", trial.wall_s}};
}

}  // namespace

std::string line_of(const Trial& trial) {
  return fmt::format("{:18} {:34} {}", to_string(trial.outcome), trial.fault, detail(trial));
}

std::string text_of(const Result& result) {
  const Score all = score("all", result.trials);
  const std::size_t ran = all.planted - all.not_run - all.equivalent;
  std::size_t causes = 0;  // that could be right: of a mutant of the sources nobody knows it
  for (const Trial& trial : result.trials)
    if (trial.outcome == Outcome::caught && !trial.any_code) ++causes;
  std::string text = table("group", by_group(result.trials)) + table("suite", by_suite(result.trials)) +
                     not_caught(result.trials) + sources_text(result);
  text += list("codes that faults here expect and nothing raised", result.codes.silent);
  if (result.whole_catalogue)
    text += list(fmt::format("{} codes that no fault expects", result.codes.unplanted.size()), result.codes.unplanted);
  text += clean_text(result.clean);
  if (result.comparison) text += comparison_text(*result.comparison, result.baseline);
  return text +
         fmt::format("selftest: {} of those that ran caught, {} of those with the cause right first, {} not run\n",
                     of(all.caught, ran), of(all.cause_first, causes), all.not_run) +
         (all.equivalent > 0 ? fmt::format("{} more are equivalent\n", all.equivalent) : "");
}

Json json_of(const Result& result) {
  Json faults = Json::array(), caught = Json::object();
  const Noticed all = noticed(result.trials);
  for (const Trial& trial : result.trials) faults.push_back(json_of(trial));
  for (const auto& [code, count] : result.codes.caught) caught[code] = count;
  Json json = {{"schema", kSchema},
               {"schema_version", kSchemaVersion},
               {"run", result.run},
               {"level", result.level},
               {"device", result.device},
               {"whole_catalogue", result.whole_catalogue},
               {"exit_code", result.exit_code},
               {"total", json_of(score("all", result.trials))},
               {"groups", json_of(by_group(result.trials))},
               {"suites", json_of(by_suite(result.trials))},
               {"missed", missed(result.trials)},
               {"codes", {{"caught", caught}, {"silent", result.codes.silent}, {"unplanted", result.codes.unplanted}}},
               {"sources",
                {{"mutations", json_of(by_kind(result.trials))},
                 {"first_suites", json_of(by_first_suite(result.trials))},
                 {"codes", all.codes},
                 {"silent_suites", all.silent_suites},
                 {"wrongly_equivalent", wrongly_marked(result.trials, result.equivalents)},
                 {"equivalent_in_vain", result.marked_in_vain}}},
               {"cases", {{"noticed", all.cases}, {"silent", all.silent_cases}}},
               {"clean",
                {{"runs", result.clean.runs},
                 {"alarmed", result.clean.alarmed},
                 {"upper_95", clopper_pearson_upper(result.clean.alarmed, result.clean.runs)},
                 {"alarms", result.clean.alarms},
                 {"broken", result.clean.broken}}},
               {"faults", faults}};
  if (const auto& c = result.comparison)
    json["baseline"] = {
        {"file", result.baseline}, {"worse", c->worse()}, {"lost", c->lost}, {"cause_lost", c->cause_lost},
        {"gone", c->gone},         {"gained", c->gained}, {"new", c->fresh}};
  return json;
}

}  // namespace suites::selftest
