// The benchmarks: registration with Google Benchmark, and what one of them does.
#pragma once

#include "nsa/bench/machine.hpp"
#include "nsa/bench/options.hpp"
#include "nsa/bench/peers.hpp"

namespace nsa::bench {

// How many repetitions ended in which way.
struct Tally {
  int measured = 0, skipped = 0, failed = 0;
};

// The roofline: what the options say, else what was measured on a GPU of this name; nothing where neither is.
[[nodiscard]] std::optional<Peaks> peaks_of(const Options& options, const Machine& machine);

// Everything that the options name. All arguments must outlive the run. The benchmarks need a machine with a GPU;
// registering does not.
void register_benchmarks(const Options& options, const Machine& machine, const Peers& peers, Tally& tally);

}  // namespace nsa::bench
