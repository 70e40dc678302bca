// How the ranks meet: at a store that rank 0 or somebody else serves. Not for others than nsa/parallel's sources.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nsa/parallel/group.hpp"

namespace nsa::parallel {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

// A server's port that nobody uses at 127.0.0.1, and its store.
[[nodiscard]] StorePointer serve_store(int port, bool local_only);

struct Meeting {
  StorePointer store;     // of the thread that makes collectives
  StorePointer watching;  // of the thread that watches: a connection of its own
  StorePointer backend;   // of Gloo or NCCL
};
// Throws Unreachable, PortTaken, RankTwice, RankAbsent, Disagreement (another world size).
[[nodiscard]] Meeting meet(const GroupOptions& options);

// Keys, below the attempt's prefix.
inline constexpr const char* kTroubleKey = "trouble";  // Trouble as text: whoever sees it first writes it
inline constexpr const char* kDiagnosisKey = "diagnosis";
[[nodiscard]] std::string prefix_of(const World& world);

// The value of a key that may not be there yet. Throws c10::Error when the store is gone.
[[nodiscard]] std::optional<std::string> look_up(c10d::Store& store, const std::string& key);
// Until all are there: true; false at the end of the time. `between` is called while it waits, and may throw.
bool await_keys(c10d::Store& store, const std::vector<std::string>& keys, std::chrono::milliseconds longest,
                const std::function<void()>& between = {});

}  // namespace nsa::parallel
