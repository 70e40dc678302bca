// The graphs of the chains that a thread has submitted (Note [One graph a call], submission.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nsa/kernels/launch/chain.hpp"
#include "nsa/kernels/launch/launch_runtime.hpp"

namespace nsa::kernels {

// What became of a thread's chains.
struct Submitted {
  std::int64_t graphs = 0;      // chains that went as one graph
  std::int64_t one_by_one = 0;  // chains whose launches were made one by one
  std::int64_t made = 0;        // graphs
  std::int64_t set = 0;         // nodes that got other arguments or another grid
  std::int64_t refused = 0;     // graphs that the runtime refused though it took the launches
  std::string why;              // of the last of those
};

class ChainGraphs {
 public:
  static constexpr int kMost = 32;   // graphs; the one that was not used for the longest time goes
  static constexpr int kMakeAt = 3;  // a chain's graph is made when it comes for the third time: it costs 50 to 300 us

  explicit ChainGraphs(LaunchRuntime& runtime) : runtime_(runtime) {}
  ~ChainGraphs();
  ChainGraphs(const ChainGraphs&) = delete;
  ChainGraphs& operator=(const ChainGraphs&) = delete;

  // On the current device. The chain's memory may be exchanged for that of another one. Where the runtime refuses the
  // graph the launches are made one by one, now and whenever this chain comes; throws LaunchError with the kernel's
  // name where it refuses one of those too.
  void run(Chain& chain, cudaStream_t stream);
  void one_by_one(const Chain& chain, cudaStream_t stream);
  [[nodiscard]] const Submitted& submitted() const { return submitted_; }

 private:
  struct Entry {
    int device = 0;
    cudaStream_t stream = nullptr;
    Chain last;  // what the nodes have, and the graph's shape
    ChainGraph graph;
    int times = 0;
    bool refused = false;
  };
  Entry& entry_of(const Chain& chain, cudaStream_t stream);
  cudaError_t start(Entry& entry, Chain& chain);

  LaunchRuntime& runtime_;
  std::vector<std::unique_ptr<Entry>> entries_;  // used last first
  Submitted submitted_;
};

}  // namespace nsa::kernels
