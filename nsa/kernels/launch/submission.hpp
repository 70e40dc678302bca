// One call's launches as one CUDA graph.
//
// Note [One graph a call]
// Each launch costs the host 3 to 6 us, and a call of short kernels takes the host longer than the GPU. While a
// Submission lives, the launches that its thread puts on its stream (put_on(), device/launch.hpp) are collected;
// submit() sends them as one graph: 3 us for five. The graph is kept, and its nodes get the arguments and grids that
// differ from those of the call before. Shape, stream and device of the chain say which graph it is; an executable
// graph belongs to one thread, so each thread has its own.
//
// Launches go one by one where the chain is new (a graph costs as much as a hundred launches), where the stream is
// being captured, where the chain is longer than kLongest, and from end_collecting() on.
//
// Rules for who holds one: from its beginning to submit() nothing else may get onto the stream without end_collecting()
// before it; and memory that the launches use must not go back to an allocator before submit(), also where stream order
// would allow it: somebody else's kernel that is given it would come first.
#pragma once

#include <cuda_runtime_api.h>

#include "nsa/kernels/launch/chain_graphs.hpp"

namespace nsa::kernels {

class Submission {
 public:
  static constexpr std::size_t kLongest = 64;  // launches: beyond, the GPU would wait for the host

  // Within another one of the thread it is that one's, and does nothing; also where it is not `wanted`.
  explicit Submission(cudaStream_t stream, bool wanted = true);
  // The same over another runtime, for tests.
  Submission(cudaStream_t stream, LaunchRuntime& runtime, ChainGraphs& graphs);
  ~Submission();  // without submit(), after an exception: nothing that was collected is launched
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;
  // Throws LaunchError, with the kernel's name.
  void submit();
  // Whether it has begun to; not within another one.
  [[nodiscard]] bool collects() const { return outermost_; }

 private:
  bool begin(cudaStream_t stream, LaunchRuntime& runtime, ChainGraphs& graphs);
  bool outermost_ = false;
};

// For check_launch(): a launch that was collected is not checked but named, since submit() may have to tell of it.
// False where nothing is being collected. Throws std::logic_error where nothing came by put_on() since the last name:
// such a launch would run before those that it follows.
bool name_collected(const char* kernel);

// Of the calling thread.
[[nodiscard]] const Submitted& submitted();

}  // namespace nsa::kernels
