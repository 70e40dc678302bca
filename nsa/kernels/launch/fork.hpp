// Launches on two streams.
#pragma once

#include <cuda_runtime_api.h>

namespace nsa::kernels {

// side() is a stream for what may run beside `main`: it begins after what main was given before, and what main is given
// after join() waits for it; an exception joins too. With `side` null it is main itself. Also within the capture of a
// CUDA graph. Throws LaunchError where the runtime refuses.
class Fork {
 public:
  Fork(cudaStream_t main, cudaStream_t side);
  ~Fork();
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  [[nodiscard]] cudaStream_t side() const { return side_; }
  void join();

 private:
  cudaStream_t main_, side_;
  bool joined_ = false;
};

// What the stream is given from here on waits for the event; null: nothing does. Throws LaunchError.
void wait_for(cudaStream_t stream, cudaEvent_t event);

}  // namespace nsa::kernels
