// The parts of merge(). Private to reports/.
#pragma once

#include "reports/fleet.hpp"

namespace reports::fleets {

// Runs of one host on different GPUs are places of their own: "node07:gpu0", "node07:gpu1". A host with one of them
// keeps its name, unless it is expected by such a one.
void name_by_gpu(std::vector<FleetHost>& hosts, const std::vector<std::string>& expected);  // fleet_gpus.cpp

// Of hosts with a run; fleet.differences.
void find_differences(Fleet& fleet);  // fleet_differences.cpp
// What a fact says of the validation itself, and not of the machine: "build.build_id".
[[nodiscard]] bool is_of_validation(const std::string& fact);

// Hosts in a few words: "node01, node02, node03 and 997 more".
[[nodiscard]] std::string names(const Fleet& fleet, const std::vector<std::size_t>& hosts, std::size_t most);
// "cuda.driver: 580.82 on 998 hosts; 570.10 on node07, node09"
[[nodiscard]] std::string in_words(const Fleet& fleet, const FleetDifference& difference);
// "throughput/step: tokens_per_s is 5100 tok/s, 48 % behind the median 9800 tok/s of 16 hosts (...)"
[[nodiscard]] std::string in_words(const Fleet& fleet, const SlowHost& slow);
// How slow hosts were looked for, and with what rate of false alarms.
[[nodiscard]] std::string about_slow_hosts(const Fleet& fleet);
// "2 hosts", "2 GPUs"
[[nodiscard]] std::string amount(const Fleet& fleet, const std::vector<std::size_t>& hosts);
// "4 hosts", "8 GPUs of 2 hosts", "8 GPUs of 2 hosts and 1 other host"
[[nodiscard]] std::string amount(const Fleet& fleet);
// "4 hosts: 2 READY, 1 NOT READY, 1 missing"
[[nodiscard]] std::string counts(const Fleet& fleet);
// What became of a host's suite in the shortest words: "pass"; "" where it was not planned.
[[nodiscard]] std::optional<Status> outcome_of(const FleetHost& host, const std::string& suite);
// "READY", or why that is not the last word: "missing", "running".
[[nodiscard]] std::string verdict_word(const FleetHost& host);
[[nodiscard]] Verdict verdict_of(const FleetHost& host);  // for colours and order: without a run CONDITIONAL

}  // namespace reports::fleets
