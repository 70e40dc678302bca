#include "harness/codes.hpp"

#include <algorithm>
#include <stdexcept>

namespace harness {

namespace {
using reports::Severity;

constexpr Code kOwnCodes[] = {
#define CODE(constant, id, title, category, severity, cause, next) \
  {id, title, category, Severity::severity, cause, next},
#include "harness/codes.def"
#undef CODE
};
}  // namespace

std::span<const Code> own_codes() { return kOwnCodes; }

Severity severity_of(const Code& code, std::optional<Severity> said, bool report_gates) {
  const Severity severity = said.value_or(code.severity);
  return report_gates && code.category == "performance" ? std::min(severity, Severity::warn) : severity;
}

CodeTable::CodeTable(std::span<const Code> of_program) : codes_(std::begin(kOwnCodes), std::end(kOwnCodes)) {
  for (const Code& code : of_program) {
    if (find(code.id) != nullptr) throw std::logic_error("finding code " + std::string(code.id) + " is declared twice");
    codes_.push_back(code);
  }
}

const Code* CodeTable::find(std::string_view id) const {
  const auto at = std::find_if(codes_.begin(), codes_.end(), [&](const Code& code) { return code.id == id; });
  return at == codes_.end() ? nullptr : &*at;
}

}  // namespace harness
