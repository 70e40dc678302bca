// What of the CUDA runtime a chain of launches needs. The tests and the emulation have another.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "nsa/kernels/device/launch.hpp"
#include "nsa/kernels/launch/chain.hpp"

namespace nsa::kernels {

// A graph of one chain: a node a launch, in the chain's order.
struct ChainGraph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::vector<cudaGraphNode_t> nodes;
};

class LaunchRuntime {
 public:
  virtual ~LaunchRuntime() = default;
  // Whether launches on the stream may wait for those that follow: not while it is captured, nor where somebody who
  // looks for a fault wants each kernel by itself (CUDA_LAUNCH_BLOCKING).
  virtual bool may_collect(cudaStream_t stream) = 0;
  virtual int device() = 0;  // the current one
  virtual cudaError_t launch(const LaunchCall& call, cudaStream_t stream) = 0;
  // What was made until a refusal is in `graph` too.
  virtual cudaError_t make(const Chain& chain, ChainGraph& graph) = 0;
  // From the next start() on.
  virtual cudaError_t set(const ChainGraph& graph, std::size_t node, const LaunchCall& call) = 0;
  virtual cudaError_t start(const ChainGraph& graph, cudaStream_t stream) = 0;
  virtual void destroy(ChainGraph& graph) = 0;
  // A refusal that was dealt with is not to be the next launch's.
  virtual void forget_error() = 0;
  virtual const char* describe(cudaError_t error) = 0;
};

// The CUDA runtime itself.
LaunchRuntime& launch_runtime();

}  // namespace nsa::kernels
