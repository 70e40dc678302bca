// A permutation of [0, count) that is computed and not stored: a Feistel network over the next power of four, walked
// until it lands inside. Any key will do; one key gives one order, on every machine.
#pragma once

#include <cstdint>

#include "base/random.hpp"

namespace nsa::train {

class Permutation {
 public:
  // count >= 1
  constexpr Permutation(std::uint64_t count, std::uint64_t key) : count_(count), key_(key) {
    while (half_ < 32 && (std::uint64_t{1} << (2 * half_)) < count) ++half_;
  }
  // What stands at `place`, below count.
  [[nodiscard]] constexpr std::uint64_t operator()(std::uint64_t place) const {
    do place = shuffled(place);
    while (place >= count_);
    return place;
  }

 private:
  static constexpr std::uint64_t kRounds = 6;

  [[nodiscard]] constexpr std::uint64_t shuffled(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = value >> half_, right = value & mask;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      const std::uint64_t next = left ^ (base::mixed(right + base::mixed(key_ + round * base::kRandomStep)) & mask);
      left = right;
      right = next;
    }
    return left << half_ | right;
  }

  std::uint64_t count_, key_;
  unsigned half_ = 1;  // bits of each half
};

// The key of a pass over the data.
[[nodiscard]] constexpr std::uint64_t key_of_pass(std::uint64_t seed, std::int64_t pass) {
  return base::mixed(base::mixed(seed) + static_cast<std::uint64_t>(pass));
}

}  // namespace nsa::train
