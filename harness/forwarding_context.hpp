// A context that passes everything on to another one: the base of those that add to what a case tells.
#pragma once

#include "harness/context.hpp"

namespace harness {

class ForwardingContext : public Context {
 public:
  explicit ForwardingContext(Context& to) : to_(to) {}

  [[nodiscard]] const Settings& settings() const override { return to_.settings(); }
  [[nodiscard]] bool cuda() const override { return to_.cuda(); }
  [[nodiscard]] std::filesystem::path run_folder() const override { return to_.run_folder(); }
  [[nodiscard]] std::string run_id() const override { return to_.run_id(); }
  [[nodiscard]] const Json& planned_provenance() const override { return to_.planned_provenance(); }
  [[nodiscard]] std::uint64_t seed(std::string_view purpose, int trial) const override {
    return to_.seed(purpose, trial);
  }
  [[nodiscard]] base::Load load() const override { return to_.load(); }
  void phase(std::string_view name) override { to_.phase(name); }
  void progress() override { to_.progress(); }
  void metric(std::string_view name, double value, std::string_view unit) override { to_.metric(name, value, unit); }
  void fact(std::string_view key, const Json& value) override { to_.fact(key, value); }
  void artifact(const std::filesystem::path& relative) override { to_.artifact(relative); }
  void finding(std::string_view code, std::string_view message, const Json& evidence) override {
    to_.finding(code, message, evidence);
  }
  void finding(std::string_view code, reports::Severity severity, std::string_view message,
               const Json& evidence) override {
    to_.finding(code, severity, message, evidence);
  }

 protected:
  // The finding of a check that failed is the other context's: whoever changes findings changes this one too.
  void conclude(const Comparison& comparison, std::string_view code, const std::string& what_failed,
                const Json& evidence) override {
    to_.conclude(comparison, code, what_failed, evidence);
  }
  void check(std::string_view name, bool pass, const Json& measured, std::string_view comparator, const Json& bound,
             std::string_view unit) override {
    to_.check(name, pass, measured, comparator, bound, unit);
  }

 private:
  Context& to_;
};

}  // namespace harness
