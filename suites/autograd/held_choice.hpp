// Holds the choice of blocks: the first pass chooses, every later pass over the same tokens repeats that choice. What
// then moves when the compressed keys change moves through attention and not through the choice.
#pragma once

#include "nsa/model/runtime.hpp"

namespace suites::autograd_cases {

class HeldChoice {
 public:
  // Wraps runtime.ops until destroyed. `runtime` must outlive it; every pass goes through all `layers` in turn.
  HeldChoice(nsa::Runtime& runtime, std::int64_t layers);
  ~HeldChoice() { runtime_.ops = before_; }
  HeldChoice(const HeldChoice&) = delete;
  HeldChoice& operator=(const HeldChoice&) = delete;

 private:
  nsa::Runtime& runtime_;
  nsa::OpsProvider before_;
};

}  // namespace suites::autograd_cases
