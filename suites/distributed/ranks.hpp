// Runs an order on N processes of this program and gathers what became of them. Whatever happens, none of them is left
// when a call returns or throws, or this process dies.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "suites/distributed/ends.hpp"
#include "suites/distributed/order.hpp"

namespace suites::distributed_ranks {

struct Launch {
  int size = 2;
  std::filesystem::path program = {};   // what serves kRankVerb; empty: this program
  std::function<void()> progress = {};  // called often
  // Called when all have been started, with their process ids by rank: for a test that kills one.
  std::function<void(const std::vector<pid_t>&)> started = {};
};

// By rank. Throws std::system_error and parallel::Error where they cannot even be started.
[[nodiscard]] std::vector<Ended> run_ranks(const Order& order, const Launch& launch);

[[nodiscard]] Records records_of(const std::vector<Ended>& ends);

// Processes that still work on this order, as "4711 nsa-validate": there must be none.
[[nodiscard]] std::vector<std::string> left_over(const Order& order);

}  // namespace suites::distributed_ranks
