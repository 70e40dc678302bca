// The memory law of a training step: peak bytes = max(floor, a + B*(b*S + c*S^2)), fitted to measured peaks and stored
// per model, backend, precision and GPU. a holds what does not depend on the tokens (weights, moments), b what every
// token needs, c what every pair of tokens needs (masks, scores); the floor is what the update of the weights needs,
// which comes when the tokens' memory is free again.
//
// Measured by the case throughput/memory_law, which prints its fits in the format that configs/memory/ holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/flags.hpp"

namespace suites::probes {

struct MemoryLaw {
  double a = 0;      // bytes
  double b = 0;      // bytes / token
  double c = 0;      // bytes / token^2
  double floor = 0;  // bytes; below the law at lengths that matter

  // Bytes at S tokens a sequence and B sequences in one batch (accumulation adds none).
  [[nodiscard]] double at(double S, double B = 1) const;
  // The largest whole S (B) whose bytes are at most `bytes`; 0 when none fits.
  [[nodiscard]] double longest(double bytes, double B = 1) const;
  [[nodiscard]] double largest_batch(double bytes, double S) const;
};

struct MemoryPoint {
  double S = 0, bytes = 0;  // one batch of B = 1, forward and backward pass
};
struct MemoryFit {
  MemoryLaw law;
  double r2 = 0;             // of the least squares
  double exponent = 0;       // local: d log(bytes - a) / d log(S) at the longest S; 1 is linear, 2 quadratic
  double worst_percent = 0;  // largest deviation of a point from the law, in percent of the point
  std::vector<MemoryPoint> points;
};
// Least squares with a, b, c >= 0; the floor is not fitted but measured. Throws std::invalid_argument for fewer than 4
// distinct S, and for a point that is not finite or not positive.
[[nodiscard]] MemoryFit fit(std::span<const MemoryPoint> points);

// The name of what the flags ask for (asked_for of suites/ways.hpp), with "_masked" behind it where blocks are chosen
// by mask, and "_recompute" where activations are computed again (train.gradient_checkpointing). What needs a GPU is
// refused on the CPU, so that its names are sdpa's there.
[[nodiscard]] std::string memory_backend(const nsa::EffectiveFlags& flags, bool cuda, bool recompute = false);

struct MemoryKey {
  std::string model;  // ModelConfig::name
  std::string backend;
  std::string precision;
  std::string gpu = "cpu";  // the device's name ("NVIDIA H200"), or "cpu"
  bool operator==(const MemoryKey&) const = default;
};
struct StoredLaw {
  MemoryKey key;
  MemoryLaw law;
  std::int64_t parameters = 0;  // of the model that was measured: another count is another model of the same name
  double longest_S = 0;         // measured up to here; beyond it the law is an extrapolation
  std::string origin;           // when, with which build and torch
};
// Every law of every *.yaml in `folder`, in the order of the names. Throws std::runtime_error (file, line, reason) for
// a file that is malformed or lacks a key; a folder that does not exist holds none.
[[nodiscard]] std::vector<StoredLaw> load_memory_laws(const std::filesystem::path& folder);
// The law of this key and of a model of as many parameters; the last one wins.
[[nodiscard]] std::optional<StoredLaw> find_memory_law(const std::vector<StoredLaw>& laws, const MemoryKey& key,
                                                       std::int64_t parameters);
// One entry of the list `laws:`, as load_memory_laws reads it.
[[nodiscard]] std::string to_yaml(const StoredLaw& law, const MemoryFit& fit);

}  // namespace suites::probes
