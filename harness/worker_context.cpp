#include "harness/worker_context.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "reports/model.hpp"

namespace harness {

namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(50);

bool is_time(std::string_view unit) {
  return unit == "s" || unit == "ms" || unit == "us" || unit == "ns" || unit.ends_with("/s");
}

}  // namespace

WorkerContext::WorkerContext(const WorkOrder& order, const Settings& settings, const CodeTable& codes, std::string id,
                             const EventSink& sink, const LoadSource& source)
    : order_(order), settings_(settings), codes_(codes), id_(std::move(id)), sink_(sink), watch_(source) {}

std::uint64_t WorkerContext::seed(std::string_view purpose, int trial) const {
  return derive_seed(order_.seed, id_, purpose, trial);
}

base::Load WorkerContext::load() const { return disturbance_ ? *disturbance_ : watch_.look(); }

void WorkerContext::phase(std::string_view name) {
  watch_.phase();
  phase_ = name;
  tell("phase", {{"name", name}});
}

// Cases call this in their inner loops, from any thread; a heartbeat every now and then is enough.
void WorkerContext::progress() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  auto last = last_progress_.load(std::memory_order_relaxed);
  if (now - last < std::chrono::nanoseconds(kProgressInterval).count()) return;
  if (last_progress_.compare_exchange_strong(last, now)) tell("progress", Json::object());
}

void WorkerContext::metric(std::string_view name, double value, std::string_view unit) {
  if (is_time(unit)) (void)note_time();
  tell("metric", {{"name", name}, {"value", reports::number(value)}, {"unit", unit}});
}

void WorkerContext::fact(std::string_view key, const Json& value) { tell("fact", {{"key", key}, {"value", value}}); }

void WorkerContext::artifact(const std::filesystem::path& relative) { tell("artifact", {{"path", relative.string()}}); }

void WorkerContext::finding(std::string_view code, std::string_view message, const Json& evidence) {
  tell_finding(code, std::nullopt, {{"code", code}, {"message", message}, {"evidence", evidence}});
}

void WorkerContext::finding(std::string_view code, reports::Severity severity, std::string_view message,
                            const Json& evidence) {
  tell_finding(
      code, severity,
      {{"code", code}, {"severity", reports::to_string(severity)}, {"message", message}, {"evidence", evidence}});
}

void WorkerContext::conclude(const Comparison& comparison, std::string_view code, const std::string& what_failed,
                             const Json& evidence) {
  const Code* row = codes_.find(code);
  if (row != nullptr && row->timed) {
    const base::Load now = note_time();
    if (now.busy() && !comparison.pass && fails(*row, std::nullopt)) {
      withheld_.push_back({{"code", code},
                           {"message", what_failed},
                           {"check", comparison.name},
                           {"measured", comparison.measured},
                           {"comparator", comparison.comparator},
                           {"bound", comparison.bound},
                           {"unit", comparison.unit},
                           {"load", now.describe()}});
      return;
    }
  }
  Context::conclude(comparison, code, what_failed, evidence);
}

void WorkerContext::check(std::string_view name, bool pass, const Json& measured, std::string_view comparator,
                          const Json& bound, std::string_view unit) {
  tell("check", {{"name", name},
                 {"pass", pass},
                 {"measured", measured},
                 {"comparator", comparator},
                 {"bound", bound},
                 {"unit", unit}});
}

std::string WorkerContext::what_was_withheld() const {
  const Json& first = withheld_.front();
  return fmt::format("{} {:.400} ({}){}", first.at("code").get<std::string>(), first.at("message").get<std::string>(),
                     first.at("load").get<std::string>(),
                     withheld_.size() == 1 ? "" : fmt::format(", and {} more", withheld_.size() - 1));
}

void WorkerContext::tell_load(reports::Status status) {
  if (!withheld_.empty()) fact("withheld", withheld_);
  if (!timed_) return;
  const base::Load load = this->load();
  fact("load", to_json(load));
  if (status == reports::Status::pass && !failed_ && disturbance_)
    finding(codes::kBusyMachine, fmt::format("{}: rates that were taken meanwhile are lower bounds", load.describe()),
            to_json(load));
}

bool WorkerContext::fails(const Code& code, std::optional<reports::Severity> said) const {
  return reports::failing(severity_of(code, said, settings_.text("run.gates") == "report"));
}

base::Load WorkerContext::note_time() {
  timed_ = true;
  base::Load now = watch_.look();
  if (now.busy() && !disturbance_) disturbance_ = now;
  return now;
}

void WorkerContext::tell_finding(std::string_view code, std::optional<reports::Severity> severity, const Json& fields) {
  const Code* row = codes_.find(code);
  if (row == nullptr)
    throw std::logic_error(fmt::format("the case raised the finding code '{}', which is in no table", code));
  if (row->timed) (void)note_time();
  failed_ = failed_ || fails(*row, severity);
  tell("finding", fields);
}

void WorkerContext::tell(const char* kind, const Json& fields) {
  Json event = {{"event", kind}, {"case", id_}};
  event.update(fields);
  sink_(event);
}

}  // namespace harness
