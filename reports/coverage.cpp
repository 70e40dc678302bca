#include "reports/coverage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace reports {

namespace {

struct LevelRow {
  std::string_view level;
  std::string_view opens;  // what READY at this level allows
  std::vector<std::string_view> leaves_open;
};

constexpr std::string_view kEndurance =
    "never covered by any level: endurance (hours of training, fragmentation, slow leaks, rare hangs): watch the run, "
    "and save checkpoints";

const std::array<LevelRow, 2>& levels() {
  static const std::array<LevelRow, 2> table{{
      {"smoke",
       "the standard level",
       {"never covered by smoke: long runs (a few training steps only: no drift, no leak, no late divergence)",
        "never covered by smoke: resuming from a checkpoint",
        "never covered by smoke: data parallel training beyond two ranks and four steps",
        "never covered by smoke: sequence lengths and shapes beyond its sweep"}},
      {"standard",
       "a watched training run of the tested configuration",
       {kEndurance, "never covered by any level: several machines, and more GPUs than this machine has",
        "never covered by any level: the whole matrix of flags, shapes and dtypes, and the longest sequences",
        "never covered by any level: configurations, machines and data other than those of this run",
        "never covered by any level: the quality of the trained model"}},
  }};
  return table;
}

const LevelRow* row_of(const std::string& level) {
  const auto& table = levels();
  const auto it = std::find_if(table.begin(), table.end(), [&](const LevelRow& row) { return row.level == level; });
  return it == table.end() ? nullptr : &*it;
}

// Cases of one suite that have no result for the same reason.
struct Gap {
  Status status;
  bool required;
  std::string reason_code, reason;
  std::vector<std::string> ids;
};

std::vector<Gap> gaps_of(const Suite& suite) {
  std::vector<Gap> gaps;
  for (const auto& c : suite.cases) {
    const Status status = outcome(c);
    if (executed(status)) continue;
    const auto same = std::find_if(gaps.begin(), gaps.end(), [&](const Gap& gap) {
      return gap.status == status && gap.required == c.required && gap.reason_code == c.reason_code &&
             gap.reason == c.reason;
    });
    if (same != gaps.end()) {
      same->ids.push_back(c.id);
    } else {
      gaps.push_back({status, c.required, c.reason_code, c.reason, {c.id}});
    }
  }
  return gaps;
}

std::string describe(const Suite& suite, const Gap& gap) {
  constexpr std::size_t kShown = 3;
  const auto shown = std::vector<std::string>(
      gap.ids.begin(), gap.ids.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, gap.ids.size())));
  std::string why = gap.reason_code.empty() ? std::string(to_string(gap.status)) : gap.reason_code;
  if (!gap.reason.empty()) why += ", " + gap.reason;
  return fmt::format("{}: {} of {} cases {} ({}): {}{}", suite.name, gap.ids.size(), suite.cases.size(),
                     gap.required ? "without a result, required" : "without a result, not required", why,
                     fmt::join(shown, "; "), gap.ids.size() > kShown ? "; ..." : "");
}

bool planned(const Run& run, const std::string& suite) {
  return std::any_of(run.suites.begin(), run.suites.end(), [&](const Suite& s) { return s.name == suite; });
}

// What a setting asks for and the selection leaves out, as the harness recorded it.
std::vector<std::string> guards_left_out(const Run& run) {
  std::vector<std::string> lines;
  const Json selection = run.provenance.is_object() ? run.provenance.value("selection", Json()) : Json();
  const Json left_out = selection.is_object() ? selection.value("guards_left_out", Json()) : Json();
  if (!left_out.is_array()) return lines;
  for (const Json& line : left_out)
    if (line.is_string()) lines.push_back(line.get<std::string>());
  return lines;
}

}  // namespace

std::string scope(const Run& run, Verdict verdict) {
  const LevelRow* row = row_of(run.level);
  const std::string opens = row ? std::string(row->opens) : "the level above " + run.level;
  const bool opens_training = row == &levels().back();
  switch (verdict) {
    case Verdict::ready:
      if (run.partial)
        return fmt::format("ready as far as the selected cases go, which is less than the {} level", run.level);
      return "ready for " + opens;
    case Verdict::conditional:
      return "not ready for " + opens + " until the listed conditions are met";
    case Verdict::not_ready:
      return "not ready for " + opens + (opens_training ? "" : ", nor for training");
  }
  return {};
}

std::vector<std::string> not_tested(const Run& run) {
  std::vector<std::string> lines = guards_left_out(run);
  for (const auto& suite : run.suites) {
    for (const auto& gap : gaps_of(suite)) lines.push_back(describe(suite, gap));
    if (suite.cases.empty()) lines.push_back(suite.name + ": no case was planned");
    for (const auto& required : suite.requires_suites) {
      if (!planned(run, required)) {
        lines.push_back(fmt::format("{}: not selected, although {} builds on it", required, suite.name));
      }
    }
  }
  if (run.partial) lines.push_back(fmt::format("the rest of the {} level: only a part of it was selected", run.level));
  if (run.device == "cpu") lines.emplace_back("the GPU: this run used the CPU only");
  if (const LevelRow* row = row_of(run.level))
    lines.insert(lines.end(), row->leaves_open.begin(), row->leaves_open.end());
  return lines;
}

}  // namespace reports
