// What a running case sees of the harness: how it tells what it does and what it found. Everything is told at once
// (one event each), so that a case that is killed leaves what it had said.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/load.hpp"
#include "harness/settings.hpp"
#include "reports/json.hpp"
#include "reports/status.hpp"

namespace harness {

using reports::Json;

// Thrown by Context::skip; a case must not catch it.
struct Skipped {
  std::string reason_code;
  std::string reason;
};

// Thrown by Context::inconclusive; a case must not catch it.
struct Inconclusive {
  std::string reason_code;
  std::string reason;
};

class Context {
 public:
  virtual ~Context() = default;

  // -- what the case may know
  [[nodiscard]] virtual const Settings& settings() const = 0;
  [[nodiscard]] virtual bool cuda() const = 0;  // run on the GPU (usable, and not --device cpu)
  [[nodiscard]] virtual std::filesystem::path run_folder() const = 0;
  [[nodiscard]] virtual std::string run_id() const = 0;
  // The provenance that the supervisor journaled when it planned the run (before any worker started).
  [[nodiscard]] virtual const Json& planned_provenance() const = 0;
  [[nodiscard]] virtual std::uint64_t seed(std::string_view purpose, int trial = 0) const = 0;
  // What others take from this case: of its times so far the first that was taken under load, else since it began.
  [[nodiscard]] virtual base::Load load() const { return {}; }

  // -- what it tells
  virtual void phase(std::string_view name) = 0;  // "forward S=512"; attributed if it dies here
  virtual void progress() = 0;                    // alive; cheap, call it in every loop
  virtual void metric(std::string_view name, double value, std::string_view unit) = 0;
  virtual void fact(std::string_view key, const Json& value) = 0;    // tables and records for the reader
  virtual void artifact(const std::filesystem::path& relative) = 0;  // a file written into run_folder()
  // A finding of the code's default severity. `message` says what was seen, with numbers; `evidence` is an object.
  virtual void finding(std::string_view code, std::string_view message, const Json& evidence = Json::object()) = 0;
  virtual void finding(std::string_view code, reports::Severity severity, std::string_view message,
                       const Json& evidence = Json::object()) = 0;

  // -- checks: each is recorded, passed or not; a failed one raises `code` with the numbers in the message and
  //    `evidence`. They return whether the check passed. NaN never passes. One of a timed code (Code::timed) that fails
  //    on a busy machine accuses nobody: the case is repeated, or ends as inconclusive.
  bool expect_at_most(std::string_view name, double value, double bound, std::string_view unit, std::string_view code,
                      const Json& evidence = Json::object());
  bool expect_at_least(std::string_view name, double value, double bound, std::string_view unit, std::string_view code,
                       const Json& evidence = Json::object());
  bool expect_within(std::string_view name, double value, double low, double high, std::string_view unit,
                     std::string_view code, const Json& evidence = Json::object());
  bool expect_equal(std::string_view name, const Json& value, const Json& wanted, std::string_view code,
                    const Json& evidence = Json::object());
  // `what_failed` is the finding's message when it does not hold.
  bool expect(std::string_view name, bool holds, std::string_view what_failed, std::string_view code,
              const Json& evidence = Json::object());

  [[noreturn]] void skip(std::string reason_code, std::string reason) const {
    throw Skipped{std::move(reason_code), std::move(reason)};
  }
  // It ran, and what it saw does not decide: a timing under load, a sample that is too small. Accuses nobody.
  [[noreturn]] void inconclusive(std::string reason_code, std::string reason) const {
    throw Inconclusive{std::move(reason_code), std::move(reason)};
  }

 protected:
  friend class ForwardingContext;  // calls these of another context
  struct Comparison {
    std::string_view name;
    bool pass = false;
    Json measured;
    std::string_view comparator;
    Json bound;
    std::string_view unit;
  };
  // Tells a comparison, and the finding when it failed.
  virtual void conclude(const Comparison& comparison, std::string_view code, const std::string& what_failed,
                        const Json& evidence);
  virtual void check(std::string_view name, bool pass, const Json& measured, std::string_view comparator,
                     const Json& bound, std::string_view unit) = 0;
};

}  // namespace harness
