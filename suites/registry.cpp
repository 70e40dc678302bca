#include "suites/registry.hpp"

#include "harness/plan.hpp"

namespace suites {

std::vector<harness::Suite> all_suites(const Subject& subject) {
  const std::vector<harness::Suite> found = {
#define SUITE(name) name(subject),
#include "suites/suites.def"
#undef SUITE
  };
  std::vector<harness::Suite> ordered;
  for (const harness::Suite* suite : harness::running_order(found)) ordered.push_back(*suite);
  return ordered;
}

}  // namespace suites
