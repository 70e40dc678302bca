// splitmix64 (Steele, Lea, Flood 2014): one addition and three mixes a number, and any seed will do. Its whole state is
// one number, so that a position can be saved, and it is the same on every machine, as the standard's are not.
#pragma once

#include <cstdint>

namespace base {

// What the state grows by from number to number: 2^64 divided by the golden ratio.
inline constexpr std::uint64_t kRandomStep = 0x9E3779B97F4A7C15U;

// The mixes alone: one-to-one, and each bit of the result hangs on all of `z`.
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

constexpr std::uint64_t next_random(std::uint64_t& state) { return mixed(state += kRandomStep); }

// Uniform in [0, count), count >= 1: the numbers beyond the last whole multiple of count are drawn again.
constexpr std::uint64_t next_below(std::uint64_t& state, std::uint64_t count) {
  const std::uint64_t surplus = (~count + 1) % count;  // 2^64 mod count
  std::uint64_t drawn = next_random(state);
  while (drawn < surplus) drawn = next_random(state);
  return drawn % count;
}

}  // namespace base
