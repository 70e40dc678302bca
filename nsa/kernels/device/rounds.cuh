// Which tiles are a CTA's where each takes tile after tile.
//
// Note [There and back]
// Tiles are numbered from the dearest to the cheapest, and in every round each CTA takes one. Did all rounds go through
// the CTAs in the same order, the first CTA would have the dearest tile of each: with 1024 tiles for 132 CTAs, whose
// costs fall to nothing (2048 tokens, 16 pairs of batch entry and group), an eighth more than its share. So every other
// round goes back: who had the dearest tile of one has the cheapest of the next.
#pragma once

namespace nsa::kernels::hopper {

__host__ __device__ constexpr int tile_of_round(int round, int cta, int ctas) {
  return round * ctas + (round % 2 ? ctas - 1 - cta : cta);
}

// All threads of a CTA walk through the same numbers. One counter, as a loop over the numbers would have.
class Rounds {
 public:
  __device__ explicit Rounds(int tiles) : tiles_(tiles) {}
  // Numbers rise from round to round: after the first beyond the end there is none.
  [[nodiscard]] __device__ bool more() const { return number() < tiles_; }
  [[nodiscard]] __device__ int number() const {
    return tile_of_round(round_, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  __device__ void advance() { ++round_; }

 private:
  int tiles_, round_ = 0;
};

}  // namespace nsa::kernels::hopper
