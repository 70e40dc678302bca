// The mutants of the sources that this program holds (mutants.py made them): rows of the catalogue, group "sources".
// None, unless it was built with NSA_VALIDATE_SOURCE_MUTANTS.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "suites/faults/planted.hpp"
#include "suites/subject.hpp"

namespace suites {

[[nodiscard]] std::vector<Planted> source_mutants(const std::shared_ptr<Seams>& seams);
[[nodiscard]] std::size_t count_of_source_mutants();

}  // namespace suites
