// nsa-validate: the harness filled with NSA's suites, codes, faults, settings and providers.
#pragma once

#include <memory>
#include <vector>

#include "harness/program.hpp"
#include "suites/codes.hpp"
#include "suites/preflight/settings.hpp"
#include "suites/subject.hpp"

namespace suites {

[[nodiscard]] harness::Program make_program();

// The catalogue of planted faults (faults/catalogue.cpp); planting fills `seams`.
[[nodiscard]] std::vector<harness::Fault> faults(std::shared_ptr<Seams> seams);

// One suite a folder; each function stands in <folder>/<folder>.cpp. `..._settings` are its declared keys.
[[nodiscard]] harness::Suite preflight(const Subject& subject);
[[nodiscard]] harness::Suite init_stats(const Subject& subject);
[[nodiscard]] harness::Suite forward(const Subject& subject);
[[nodiscard]] harness::Suite flag_matrix(const Subject& subject);
[[nodiscard]] harness::Suite s_sweep(const Subject& subject);
[[nodiscard]] harness::Suite autograd(const Subject& subject);
[[nodiscard]] harness::Suite parity(const Subject& subject);
[[nodiscard]] harness::Suite training(const Subject& subject);
[[nodiscard]] harness::Suite throughput(const Subject& subject);

// The declared keys of a suite (those of every suite: locations.hpp; of preflight: preflight/settings.hpp).
[[nodiscard]] std::vector<harness::SettingSpec> s_sweep_settings();
[[nodiscard]] std::vector<harness::SettingSpec> parity_settings();
[[nodiscard]] std::vector<harness::SettingSpec> training_settings();
[[nodiscard]] std::vector<harness::SettingSpec> throughput_settings();

}  // namespace suites
