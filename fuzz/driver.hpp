// Runs a target over many inputs in a child with limits, so that a crash, a hang and an allocation without bounds are
// results, with the input that makes them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fuzz/mutator.hpp"

namespace fuzz {

// One reader of files or arguments.
struct Target {
  std::string name, meaning;
  // Reads the input. What it refuses by the errors that it documents is fine; whatever it throws is a failure.
  std::function<void(const std::string& input)> read;
  std::vector<std::string> corpus, words;  // as Mutator wants them
};

struct Limits {
  int cpu_s = 5;                               // processor time of one input
  int wall_s = 60;                             // time of one input
  std::size_t bytes = std::size_t{512} << 20;  // of address space, above what the process has before the first input
};

struct Failure {
  std::uint64_t number;  // of the input
  std::string input, what;
};

struct Outcome {
  std::uint64_t inputs = 0;
  std::vector<Failure> failures;
};

// Until `seconds` are over or there are `most` failures; a failure ends the child, and a new one goes on behind it. The
// whole corpus is read, however short the time.
[[nodiscard]] Outcome fuzz(const Target& target, std::uint64_t seed, double seconds, const Limits& limits = {},
                           std::size_t most = 5);

// One input, with the same limits; "" when it is fine, else what happened.
[[nodiscard]] std::string try_input(const Target& target, const std::string& input, const Limits& limits = {});

}  // namespace fuzz
