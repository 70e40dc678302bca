// nsa-validate: the harness filled with NSA's suites, codes, faults, settings and providers.
#pragma once

#include <memory>
#include <vector>

#include "harness/program.hpp"
#include "suites/codes.hpp"
#include "suites/faults/planted.hpp"
#include "suites/subject.hpp"

namespace suites {

[[nodiscard]] harness::Program make_program();

// The catalogue of planted faults (faults/catalogue.cpp); planting fills `seams`.
[[nodiscard]] std::vector<Planted> catalogue(const std::shared_ptr<Seams>& seams);
// The same as the harness knows them.
[[nodiscard]] std::vector<harness::Fault> faults(std::shared_ptr<Seams> seams);

}  // namespace suites
