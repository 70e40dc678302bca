// Findings grouped by code, and their evidence.
#include <fmt/format.h>

#include <algorithm>

#include "reports/view.hpp"

namespace reports::view {

namespace {

void add(std::vector<FindingGroup>& groups, const Finding& finding, const Case* where) {
  const auto known =
      std::find_if(groups.begin(), groups.end(), [&](const FindingGroup& g) { return g.first().code == finding.code; });
  if (known == groups.end()) {
    groups.push_back({finding.severity, {{&finding, where}}});
    return;
  }
  known->severity = std::max(known->severity, finding.severity);
  known->occurrences.push_back({&finding, where});
}

void flatten(Evidence& out, const std::string& name, const Json& value, std::size_t limit) {
  constexpr std::size_t kValueBytes = 120;
  constexpr std::size_t kSmall = 4;  // members of a nested object that still get rows of their own
  if (value.is_object() && !value.empty() && value.size() <= kSmall) {
    for (const auto& [key, item] : value.items())
      flatten(out, name.empty() ? key : fmt::format("{}.{}", name, key), item, limit);
  } else if (out.rows.size() < limit) {
    out.rows.emplace_back(name, cut(view::value(value), kValueBytes));
  } else {
    ++out.left_out;
  }
}

// Of evidence {"python": {"command": text}}.
std::string command_of(const Json& evidence) {
  if (!evidence.is_object() || !evidence.contains("python")) return "";
  const Json& python = evidence["python"];
  if (!python.is_object() || !python.contains("command") || !python["command"].is_string()) return "";
  return python["command"].get<std::string>();
}

bool is_text(const std::string& key, const Json& value) {
  return (key == "stacks" || key == "last_lines") && value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& line) { return line.is_string(); });
}

std::string text_of(const Json& lines) {
  constexpr std::size_t kLines = 40, kLineBytes = 160;
  std::string text;
  for (std::size_t i = 0; i < std::min(kLines, lines.size()); ++i)
    text += cut(one_line(lines[i].get<std::string>()), kLineBytes) + "\n";
  if (lines.size() > kLines) text += fmt::format("... {} more lines, in report.json\n", lines.size() - kLines);
  return text;
}

}  // namespace

Json place(const Finding& finding) {
  static const auto kPlaces = {"layer", "op", "stage", "tensor", "parameter", "branch", "row", "head", "group", "step"};
  Json place = Json::object();
  if (!finding.evidence.is_object()) return place;
  for (const char* key : kPlaces)
    if (const auto it = finding.evidence.find(key); it != finding.evidence.end()) place[key] = *it;
  return place;
}

int located(const Finding& finding) { return static_cast<int>(place(finding).size()); }

std::vector<FindingGroup> findings(const Run& run, const std::string& follow_from) {
  std::vector<FindingGroup> groups;
  const auto add_all = [&](const std::vector<Finding>& all, const Case* where) {
    for (const Finding& f : all)
      if (f.follows_from == follow_from) add(groups, f, where);
  };
  add_all(run.findings, nullptr);
  for (const auto& suite : run.suites)
    for (const auto& c : suite.cases) add_all(c.findings, &c);
  for (auto& group : groups) {
    std::stable_sort(group.occurrences.begin(), group.occurrences.end(), [](const Occurrence& a, const Occurrence& b) {
      if (a.finding->severity != b.finding->severity) return a.finding->severity > b.finding->severity;
      return located(*a.finding) > located(*b.finding);
    });
  }
  // Codes of one cause in the order in which they point at it, causes by their rank; what no cause names comes last.
  std::vector<std::string> ranked;
  for (const LikelyCause& cause : run.causes) ranked.insert(ranked.end(), cause.codes.begin(), cause.codes.end());
  const auto rank = [&](const FindingGroup& g) {
    return failing(g.severity) ? std::find(ranked.begin(), ranked.end(), g.first().code) : ranked.end();
  };
  std::stable_sort(groups.begin(), groups.end(), [&](const FindingGroup& a, const FindingGroup& b) {
    return rank(a) != rank(b) ? rank(a) < rank(b) : a.severity > b.severity;
  });
  return groups;
}

std::string python_command(const Finding& finding) { return command_of(finding.evidence); }

std::string python_command(const FindingGroup& group) {
  for (const Occurrence& occurrence : group.occurrences)
    if (std::string command = python_command(*occurrence.finding); !command.empty()) return command;
  return "";
}

std::string replay_command(const Run& run, const FindingGroup& group) {
  for (const Occurrence& occurrence : group.occurrences) {
    if (occurrence.where == nullptr) continue;
    if (const auto bundle = run.bundles.find(occurrence.where->id); bundle != run.bundles.end())
      return bundle->second.command;
  }
  return "";
}

std::string sentence(const LikelyCause& cause) {
  return fmt::format("{}{}", cause.what, cause.what.ends_with('.') ? "" : ".");
}

std::string follows(const LikelyCause& cause) {
  std::string text;
  for (const auto& [code, title, findings] : cause.consequences)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", code, findings);
  return text;
}

Evidence evidence(const Json& object, std::size_t limit) {
  Evidence out;
  if (!object.is_object()) return out;
  const bool has_command = !command_of(object).empty();
  for (const auto& [key, item] : object.items()) {
    if (key == "python" && has_command) continue;
    if (is_text(key, item))
      out.texts.emplace_back(key, text_of(item));
    else
      flatten(out, key, item, limit);
  }
  return out;
}

}  // namespace reports::view
