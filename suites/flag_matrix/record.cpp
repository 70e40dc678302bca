#include "suites/flag_matrix/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "suites/codes.hpp"
#include "suites/probes/contract_errors.hpp"

namespace suites::flag_record {

using harness::Json;

namespace {

constexpr std::size_t kQuoted = 12;  // of many disagreements of one kind
constexpr std::size_t kNamed = 64;   // of their settings

// Every kind is checked in every case, so that a pass is on record too.
struct Check {
  std::string_view code;
  const char* name;
};
constexpr std::array kChecks = {Check{codes::kFlagIgnored, "requested_is_executed"},
                                Check{codes::kRouteRecord, "record_is_executed"},
                                Check{codes::kRefusalWithoutReason, "refusals_have_reasons"}};

}  // namespace

void Record::Kind::add(const nsa::Environment& environment, bool training, const std::string& what,
                       const Json& evidence) {
  Json setting = Json::object();
  std::string text;
  for (const auto& [name, value] : environment) {
    setting[name] = value;
    text += fmt::format("{}={} ", name, value);
  }
  const std::string name = text.empty() ? "no flag" : text.substr(0, text.size() - 1);
  if (settings.size() < kNamed && std::find(settings.begin(), settings.end(), name) == settings.end())
    settings.push_back(name);
  if (count++ == 0) first = text + (training ? "with" : "without") + " gradients: " + what;
  if (rows.size() >= kQuoted) return;
  Json row = {{"setting", setting}, {"gradients", training}, {"what", what}};
  row.update(evidence);
  rows.push_back(row);
}

void Record::add(const nsa::Environment& environment, bool training, const flag_execution::Execution& seen,
                 const std::vector<flag_witness::Disagreement>& found) {
  ++executed_;
  for (const flag_witness::Disagreement& d : found) kinds_[d.code].add(environment, training, d.what, d.evidence);
  if (!seen.overwritten) return;
  if (!overwritten_) overwritten_ = seen.overwritten;
  refused_backward_.add(environment, training, seen.overwritten->message, Json::object());
}

void Record::add_refused(const nsa::Environment& environment, bool training, const std::string& message) {
  ++executed_;
  refused_forward_.add(environment, training, message, Json::object());
}

void Record::tell(harness::Context& context, const std::string& name) const {
  context.metric("executions", executed_, "1");
  for (const auto& [code, check] : kChecks) {
    const auto found = kinds_.find(code);
    const Kind kind = found == kinds_.end() ? Kind{} : found->second;
    context.expect(
        fmt::format("{}.{}", name, check), kind.count == 0,
        fmt::format("{} disagreement(s) in {} executions; the first: {}", kind.count, executed_, kind.first), code,
        {{"disagreements", kind.rows}, {"count", kind.count}, {"settings", kind.settings}, {"first", kind.first}});
  }
  if (overwritten_)
    probes::report_inplace_write(context, *overwritten_,
                                 {{"refused_passes", refused_backward_.count}, {"settings", refused_backward_.rows}});
  if (refused_forward_.count > 0)
    context.finding(codes::kCuSeqlens,
                    fmt::format("{} of {} passes were refused inside; the first: {}", refused_forward_.count, executed_,
                                refused_forward_.first),
                    {{"refused", refused_forward_.rows}});
}

void run(const Bench& bench, const nsa::Environment& environment, Record& record) {
  bench.context.progress();
  const bool training = bench.yardstick.training;
  try {
    const flag_execution::Execution seen =
        flag_execution::execute(bench.subject, bench.plan, nsa::resolve(environment), training);
    record.add(environment, training, seen, flag_witness::judge(environment, bench.yardstick, seen, bench.plan));
  } catch (const nsa::ContractError& refusal) {
    if (!probes::about_cu_seqlens(refusal)) throw;
    record.add_refused(environment, training, refusal.what());
  }
}

}  // namespace suites::flag_record
