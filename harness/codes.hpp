// Finding codes: what a finding means, what usually causes it and what to do next. Append-only; a code is never reused.
// The harness has its own table (NSA-X..., codes.cpp); a program adds its own (Program::codes).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/status.hpp"

namespace harness {

struct Code {
  std::string_view id;         // "NSA-A005"
  std::string_view title;      // one line, no full stop
  std::string_view category;   // see reports::Finding::category
  reports::Severity severity;  // default; Context::finding may be told otherwise
  std::string_view cause;      // likely cause
  std::string_view next;       // next step
  bool timed = false;          // its checks compare times: one that fails on a busy machine proves nothing
};

// Codes that the harness itself raises.
namespace codes {
inline constexpr std::string_view kCrash = "NSA-X001";        // worker died by a signal
inline constexpr std::string_view kHang = "NSA-X002";         // no progress
inline constexpr std::string_view kVanished = "NSA-X003";     // worker exited without ending its case
inline constexpr std::string_view kException = "NSA-X004";    // the case threw
inline constexpr std::string_view kProtocol = "NSA-X005";     // the worker wrote something that is not an event
inline constexpr std::string_view kTimeout = "NSA-X006";      // still progressing at the absolute limit
inline constexpr std::string_view kWorkerStart = "NSA-X007";  // the worker could not be started or never said hello
inline constexpr std::string_view kUnhealthy = "NSA-X008";    // the case left its process unusable (device error)
inline constexpr std::string_view kLostOutput = "NSA-X009";   // what the run said on a stream did not arrive
inline constexpr std::string_view kOutOfMemory = "NSA-X010";  // killed by the kernel for it, or told so
inline constexpr std::string_view kKilled = "NSA-X011";       // SIGKILL from elsewhere
inline constexpr std::string_view kBusyMachine = "NSA-X012";  // times were taken while others used the CPUs
}  // namespace codes

[[nodiscard]] std::span<const Code> own_codes();

// How grave a finding is: as the case says, else as the code. Findings about speed are warnings at most where gates are
// only reported (run.gates).
[[nodiscard]] reports::Severity severity_of(const Code& code, std::optional<reports::Severity> said, bool report_gates);

// The harness's codes and a program's, in one. Throws std::logic_error when an id stands twice.
class CodeTable {
 public:
  explicit CodeTable(std::span<const Code> of_program);
  [[nodiscard]] const Code* find(std::string_view id) const;  // nullptr: unknown
  [[nodiscard]] const std::vector<Code>& all() const { return codes_; }

 private:
  std::vector<Code> codes_;
};

}  // namespace harness
