#include "suites/codes.hpp"

#include "harness/codes.hpp"
#include "reports/status.hpp"

namespace suites {

std::vector<harness::Code> finding_codes() {
  using enum reports::Severity;
  return {
#define CODE(constant, id, title, category, severity, cause, next) {id, title, category, severity, cause, next},
#define TIMED_CODE(constant, id, title, category, severity, cause, next) \
  {id, title, category, severity, cause, next, /*timed=*/true},
#include "suites/codes.def"
#undef TIMED_CODE
#undef CODE
  };
}

}  // namespace suites
