// Memory that nobody has written, made visible or harmless: what depends on it shows.
#pragma once

#include "suites/probes/op_tap.hpp"

namespace suites::probes {

// While it lives, memory that ATen allocates is filled with NaN (integers: with their largest value), as torch's
// deterministic mode does it.
class StaleMemory {
 public:
  StaleMemory();
  ~StaleMemory();
  StaleMemory(const StaleMemory&) = delete;
  StaleMemory& operator=(const StaleMemory&) = delete;

 private:
  bool before_, warned_;
};

// While it lives, memory that ATen's operations return without writing it (aten::empty and its like) is filled with 0:
// what a run computes then does not depend on what the memory held before.
class ZeroMemory {
 public:
  ZeroMemory();
  ZeroMemory(const ZeroMemory&) = delete;
  ZeroMemory& operator=(const ZeroMemory&) = delete;

 private:
  OpTap tap_;
};

}  // namespace suites::probes
