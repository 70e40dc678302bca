// What the self-test is asked: its command line, and which faults of the catalogue it means.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "suites/faults/planted.hpp"

namespace suites::selftest {

struct Options {
  std::string level = "smoke", device = "auto", baseline, write_baseline, equivalent;
  std::optional<std::string> out;
  std::vector<std::string> groups, faults;
  std::size_t jobs = 1, clean = 1, sample = 0;
  std::string seed;
  double limit_s = 600;
  bool whole = false, list = false, quiet = false, force = false;

  [[nodiscard]] bool narrowed() const { return !groups.empty() || !faults.empty() || sample > 0; }
};

void add_options(CLI::App& app, Options& options);

[[nodiscard]] std::vector<std::string> names_of(std::span<const Planted> faults);

// In the catalogue's order; with --sample a part of them, the same one for the same seed. `cuda`: there is a
// GPU, so that a sample may have what needs one. Throws UsageError for a group or fault that there is not, with
// the nearest name.
[[nodiscard]] std::vector<Planted> chosen(const std::vector<Planted>& catalogue, const Options& options, bool cuda);

}  // namespace suites::selftest
