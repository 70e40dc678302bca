// Launches that were collected, with copies of their arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include "nsa/kernels/device/launch.hpp"

namespace nsa::kernels {

class Chain {
 public:
  void add(const LaunchCall& call);
  // Those that have no name yet are called so. False where all have one.
  bool name(const char* kernel);
  void clear();
  [[nodiscard]] std::size_t size() const { return links_.size(); }
  // Valid until the chain changes.
  [[nodiscard]] LaunchCall operator[](std::size_t i) const;
  [[nodiscard]] std::string name_of(std::size_t i) const;
  // The same kernels in the same order, each early or not: one graph's shape.
  [[nodiscard]] bool same_shape(const Chain& other) const;
  // The i-th launches are the same, grid and arguments too. Of chains of one shape.
  [[nodiscard]] bool same_launch(const Chain& other, std::size_t i) const;

 private:
  struct Link {
    LaunchCall call;             // its spans are empty
    const char* name = nullptr;  // lives as long as the program
    std::size_t first_value = 0, values = 0;
    std::size_t first_byte = 0, end_byte = 0;
  };
  std::vector<Link> links_;
  std::vector<std::byte> bytes_;      // arguments, one after the other
  std::vector<std::size_t> offsets_;  // of every value, in bytes_
  std::vector<std::size_t> sizes_;
  mutable std::vector<void*> values_;  // of the launch that was asked for last
};

}  // namespace nsa::kernels
