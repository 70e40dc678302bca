#include "suites/causes/causes.hpp"

#include <iterator>
#include <utility>

#include "suites/causes/clues.hpp"

namespace suites {

std::vector<reports::CauseRule> causes() {
  using namespace cause_table;
  Rules all;
  for (Rules part :
       {set_up(), non_finite(), operations(), mistakes(), stages(), initial_values(), training(), ranks(), speed()})
    std::move(part.begin(), part.end(), std::back_inserter(all));
  return all;
}

}  // namespace suites
