// One intra-op thread for as long as this lives: for hundreds of passes over tiny tensors, where a second thread would
// only wait at barriers (and, on a busy machine, for its turn).
#pragma once

#include <ATen/Parallel.h>

#include <optional>

namespace suites::probes {

class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// A model of this width keeps one thread busy and no more; a second one would wait, and scatter the times.
inline constexpr std::int64_t kNarrowModel = 256;

// One thread where a model of `width` runs on the CPU and is that narrow; else as many as there are.
class ThreadsFor {
 public:
  ThreadsFor(std::int64_t width, bool cuda) {
    if (!cuda && width <= kNarrowModel) one_.emplace();
  }

 private:
  std::optional<OneThread> one_;
};

}  // namespace suites::probes
