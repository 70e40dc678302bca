// One intra-op thread for as long as this lives: for hundreds of passes over tiny tensors, where a second thread would
// only wait at barriers (and, on a busy machine, for its turn).
#pragma once

#include <ATen/Parallel.h>

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

}  // namespace suites::probes
