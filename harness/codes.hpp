// Finding codes: what a finding means, what usually causes it and what to do next. Append-only; a code is never reused.
// The harness has its own table (NSA-X..., codes.def); a program adds its own (Program::codes).
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
#define CODE(constant, id, ...) inline constexpr std::string_view constant = id;
#include "harness/codes.def"
#undef CODE
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
