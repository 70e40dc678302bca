#include "suites/scenario/text.hpp"

#include <fmt/format.h>

namespace suites::scenario {

namespace {

constexpr std::size_t kMostSeen = 300;  // of what a run says; all of it stands in the JSON

// One line, cut at a whole character.
std::string short_of(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  if (text.size() <= kMostSeen) return text;
  std::size_t end = kMostSeen;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + " ...";
}

std::string row(const Told& one) {
  return fmt::format("  {:10} {}\n             seed: {}\n             here: {}\n", to_string(one.answer.state), one.id,
                     one.said, short_of(one.answer.seen));
}

Json json_of(const Told& one) {
  return {{"id", one.id}, {"seed", one.said}, {"here", one.answer.seen}, {"state", to_string(one.answer.state)}};
}

std::string attempts_text(const std::vector<Ran>& ran) {
  std::string text = "attempts\n";
  for (const Ran& one : ran)
    if (!one.not_run.empty())
      text += fmt::format("  {:18} not run: {}\n", one.attempt, one.not_run);
    else
      text += fmt::format("  {:18} exit code {:3} {:6.1f} s  {}\n    {}\n", one.attempt, one.exit_code, one.wall_s,
                          one.trouble.empty() ? one.folder : "BROKEN: " + one.trouble, one.command);
  return text;
}

}  // namespace

std::string text_of(const Scenario& scenario, const std::vector<Ran>& ran, const Result& result,
                    const std::string& comparison) {
  std::string text = fmt::format("{}: {} ({})\n{}", scenario.name, scenario.title, scenario.seed, attempts_text(ran));
  text += fmt::format("verdict of {}\n  {:10} wanted: {}, exit code {}\n             here:   {}\n", scenario.judged,
                      to_string(result.verdict.state), scenario.verdict, scenario.exit_code_on(result.device),
                      result.verdict.seen);
  text += "causes, in their order\n";
  for (const Told& one : result.causes) text += row(one);
  for (const std::string& one : result.besides) text += fmt::format("  besides    {}\n", short_of(one));
  text += "facts\n";
  for (const Told& one : result.facts) text += row(one);
  if (!comparison.empty()) text += "compare of the attempts\n" + comparison;
  return text + fmt::format("scenario {}: {} ok, {} missing, {} not shown on {}; exit code {}\n", scenario.name,
                            result.count(State::ok), result.count(State::missing), result.count(State::not_shown),
                            result.device, result.exit_code);
}

Json json_of(const Scenario& scenario, const std::vector<Ran>& ran, const Result& result) {
  Json attempts = Json::array(), causes = Json::array(), facts = Json::array();
  for (const Ran& one : ran)
    attempts.push_back({{"name", one.attempt},
                        {"exit_code", one.exit_code},
                        {"wall_s", one.wall_s},
                        {"folder", one.folder},
                        {"command", one.command},
                        {"trouble", one.trouble},
                        {"not_run", one.not_run}});
  for (const Told& one : result.causes) causes.push_back(json_of(one));
  for (const Told& one : result.facts) facts.push_back(json_of(one));
  return {{"schema", kResultSchema},
          {"schema_version", kResultVersion},
          {"scenario", scenario.name},
          {"title", scenario.title},
          {"seed", scenario.seed},
          {"configuration", scenario.configuration},
          {"device", result.device},
          {"attempts", attempts},
          {"verdict",
           {{"wanted", scenario.verdict},
            {"wanted_exit_code", scenario.exit_code_on(result.device)},
            {"here", result.verdict.seen},
            {"state", to_string(result.verdict.state)}}},
          {"causes", causes},
          {"besides", result.besides},
          {"facts", facts},
          {"broken", result.broken},
          {"ok", result.count(State::ok)},
          {"missing", result.count(State::missing)},
          {"not_shown", result.count(State::not_shown)},
          {"exit_code", result.exit_code}};
}

}  // namespace suites::scenario
