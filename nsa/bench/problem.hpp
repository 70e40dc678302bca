// What is computed and what it must cost at least: sizes, pairs of query and key, FLOPs and bytes of each of the six
// functions. Pure arithmetic; the counts are of the algorithm, whatever a backend really does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nsa/config.hpp"
#include "nsa/route.hpp"

namespace nsa::bench {

// One batch entry, bf16.
struct Problem {
  std::string config;  // "a", "b", "c", "d"
  std::int64_t Hq = 1, G = 1, Dk = 64, Dv = 64;
  Geometry geometry;
  std::int64_t S = 2048;
};
// a: the model m7c_125m. b: the paper's model. c: what kernels are usually compared at. All with the paper's geometry.
// d: c with blocks of 128 keys, as models have them whose blocks an indexer of their own chooses.
// Throws std::invalid_argument for another name.
[[nodiscard]] Problem problem(const std::string& config, std::int64_t S);

enum class Mode { fwd, fwd_bwd };
[[nodiscard]] std::string_view to_string(Mode mode);

// How many keys the S queries see together, for one head.
[[nodiscard]] std::int64_t compressed_pairs(const Geometry& g, std::int64_t S);
[[nodiscard]] std::int64_t selected_pairs(const Geometry& g, std::int64_t S);  // with the current block chosen
[[nodiscard]] std::int64_t window_pairs(const Geometry& g, std::int64_t S);

struct Work {
  double flops = 0;
  double bytes = 0;  // memory traffic when every input is read and every output written exactly once
};
// A backward pass counts as one pass with five matrix products a pair; select has none.
[[nodiscard]] Work work(Op op, const Problem& problem, Mode mode);

// One token of decoding over caches of S tokens, the last of which it is, in one layer: each key and value that it sees
// once, by the compressed branch and the choice together.
[[nodiscard]] Work step_work(const Problem& problem);

// What a GPU reaches at best: dense bf16 products, and a copy.
struct Peaks {
  double flops_per_s = 0;
  double bytes_per_s = 0;
};
// Those that were measured on a GPU of this name (cudaDeviceProp); nothing for others: a roofline of
// another GPU is none.
[[nodiscard]] std::optional<Peaks> measured_peaks(const std::string& gpu);
// The roofline: max(flops / peak, bytes / peak).
[[nodiscard]] double roof_seconds(const Work& work, const Peaks& peaks);

}  // namespace nsa::bench
