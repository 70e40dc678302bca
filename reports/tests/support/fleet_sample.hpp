// Hosts of a fleet, made by hand from one run.
#pragma once

#include <string>
#include <vector>

#include "reports/fleet.hpp"

namespace reports::sample {

// A READY run of this host: suite "alpha" with two cases that passed, a figure of speed, a figure that is the same on
// all.
[[nodiscard]] Run run_of_host(const std::string& name);
// node00, node01, ...
[[nodiscard]] std::vector<Run> runs_of_hosts(std::size_t n);
[[nodiscard]] FleetOptions options();
// Of the codes "missing", "slow", ...; severities as the program has them.
[[nodiscard]] Fleet fleet_of(const std::vector<Run>& runs, FleetOptions with = options());
// nullptr: the fleet has no finding of this code.
[[nodiscard]] const FleetFinding* find(const Fleet& fleet, const std::string& code);

}  // namespace reports::sample
