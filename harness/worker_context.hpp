// What a case sees of the worker that runs it, for one attempt: everything becomes an event at once, but for times that
// others disturbed. They accuse nobody: a check of a timed code that fails under load is withheld, and whoever runs the
// case (worker.cpp) decides what becomes of it.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "harness/load_watch.hpp"
#include "harness/worker.hpp"

namespace harness {

class WorkerContext : public Context {
 public:
  WorkerContext(const WorkOrder& order, const Settings& settings, const CodeTable& codes, std::string id,
                const EventSink& sink, const LoadSource& source);

  [[nodiscard]] const Settings& settings() const override { return settings_; }
  [[nodiscard]] bool cuda() const override { return order_.cuda; }
  [[nodiscard]] std::filesystem::path run_folder() const override { return order_.folder; }
  [[nodiscard]] std::string run_id() const override { return order_.run_id; }
  [[nodiscard]] const Json& planned_provenance() const override { return order_.provenance; }
  [[nodiscard]] std::uint64_t seed(std::string_view purpose, int trial) const override;
  [[nodiscard]] base::Load load() const override;

  void phase(std::string_view name) override;
  void progress() override;
  void metric(std::string_view name, double value, std::string_view unit) override;
  void fact(std::string_view key, const Json& value) override;
  void artifact(const std::filesystem::path& relative) override;
  void finding(std::string_view code, std::string_view message, const Json& evidence) override;
  void finding(std::string_view code, reports::Severity severity, std::string_view message,
               const Json& evidence) override;

  // -- after the case
  [[nodiscard]] const std::string& last_phase() const { return phase_; }  // "" before the first
  // All that speaks against it was withheld.
  [[nodiscard]] bool undecided() const { return !withheld_.empty() && !failed_; }
  [[nodiscard]] const Json& withheld() const { return withheld_; }
  // "NSA-P001 training step is 200 tok/s, needed is ... (other processes used ...), and 2 more"
  [[nodiscard]] std::string what_was_withheld() const;
  // How busy the machine was, of a case that took times; what is withheld for good.
  void tell_load(reports::Status status);

 protected:
  void conclude(const Comparison& comparison, std::string_view code, const std::string& what_failed,
                const Json& evidence) override;
  void check(std::string_view name, bool pass, const Json& measured, std::string_view comparator, const Json& bound,
             std::string_view unit) override;

 private:
  [[nodiscard]] bool fails(const Code& code, std::optional<reports::Severity> said) const;
  base::Load note_time();  // one was taken; returns the load that it was taken under
  void tell_finding(std::string_view code, std::optional<reports::Severity> severity, const Json& fields);
  void tell(const char* kind, const Json& fields);

  const WorkOrder& order_;
  const Settings& settings_;
  const CodeTable& codes_;
  const std::string id_;
  const EventSink& sink_;
  std::atomic<std::chrono::steady_clock::rep> last_progress_{0};
  std::string phase_;
  LoadWatch watch_;
  bool timed_ = false;                     // it took times
  std::optional<base::Load> disturbance_;  // the first load that one was taken under
  Json withheld_ = Json::array();
  bool failed_ = false;  // a finding that was told says so
};

}  // namespace harness
