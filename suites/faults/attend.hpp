// Faults of attention as a whole: what a kernel of all branches may do wrong that none of its parts does. Each wraps
// `attend` of the table and leaves the way that it goes as it is.
#pragma once

#include <vector>

#include "suites/faults/planted.hpp"
#include "suites/subject.hpp"

namespace suites {

[[nodiscard]] std::vector<Planted> attend_faults(const std::shared_ptr<Seams>& seams);

}  // namespace suites
