// The things that are measured: functions of the ops table, alone or together, and whom each of them is compared with.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "nsa/bench/problem.hpp"

namespace nsa::bench {

struct Subject {
  std::string name;
  std::vector<Op> ops;  // in the order of the calls
  std::string peer;     // `what` in the file of peers, "" for none
  bool differentiable = true;
  bool chooses = false;  // takes a choice of blocks from outside
  bool whole = false;    // all branches: compared with dense attention too, and replayed as a graph
  // Steps of decoding in a call, a layer each with caches of its own; times and counts are of one. Replayed as a graph
  // too. 0: the subject is a pass over S tokens.
  int steps = 0;
};
[[nodiscard]] std::span<const Subject> subjects();

// Where the subject is measured: without its window the whole is a problem of its own, which peers measured for b; d is
// about chosen blocks alone.
[[nodiscard]] bool applies(const Subject& subject, const std::string& config);
// `what` of the peers that solve the same problem.
[[nodiscard]] std::string peer_of(const Subject& subject, const std::string& config);

// Sum over the functions: of the counts, and of the time that each needs at best.
[[nodiscard]] Work work(const Subject& subject, const Problem& problem, Mode mode);
[[nodiscard]] double roof_seconds(const Subject& subject, const Problem& problem, Mode mode, const Peaks& peaks);

// Compute capability.
struct Capability {
  int major = 0, minor = 0;
};
// "" when the backend serves every function of the subject by itself, else the reason. `flash` has two functions of its
// own and takes the others from sdpa: alone, those are measured there.
[[nodiscard]] std::string refusal(const Subject& subject, Backend backend, const Problem& problem, Mode mode,
                                  Capability capability);

}  // namespace nsa::bench
