// GPU times of one call: between two events on the stream, with the L2 cache written over before each.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAGraph.h>

#include <functional>

namespace nsa::bench {

// Twice the size of the L2 cache: writing it leaves nothing of a call's inputs there.
class Flush {
 public:
  explicit Flush(at::Device device);
  void operator()() const { buffer_.zero_(); }

 private:
  at::Tensor buffer_;
};

struct TimingPlan {
  int warm_up = 3;        // calls before the first that counts
  double budget_s = 0.2;  // as many calls as fit, from `least` to `most`
  int least = 5, most = 100;
};
struct Timing {
  double median_s = 0;
  int calls = 0;
  double host_s = 0;  // what the host needs to issue one call; where it is the larger one, the GPU waits for it
};
// The calls are issued one after another without waiting between them, as a training step would.
[[nodiscard]] Timing time_calls(const std::function<void()>& call, const Flush& flush, const TimingPlan& plan);

// The most that the caching allocator held during one call, above what it held before, in bytes.
[[nodiscard]] std::int64_t peak_bytes(const std::function<void()>& call);

// A call as a CUDA graph, captured after warm-up on a stream of its own; replayed on the current one.
class Graph {
 public:
  explicit Graph(const std::function<void()>& call);
  void replay() { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace nsa::bench
