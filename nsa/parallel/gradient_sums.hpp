// The gradients of all ranks, summed while backward still runs: c10d's Reducer (what PyTorch's DDP is made of), with a
// hook that sums and neither divides nor multiplies. So a loss that is weighted by its share of the whole step gives
// every rank the gradient of the whole step, the same bits on all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nsa/parallel/group.hpp"

namespace nsa::parallel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class GradientSums {
 public:
  static constexpr std::int64_t kBucketBytes = 25 << 20;

  // Makes the buckets, from the last parameter to the first, and sums a gradient of zeros once: so the order of the
  // buckets is fixed, the same after every start, and the signatures of all collectives of a step have been compared.
  // The parameters' gradients are then undefined. All parameters take part in every step.
  GradientSums(NamedTensors parameters, std::shared_ptr<Group> group, std::int64_t bucket_bytes = kBucketBytes);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // Before the last backward of a step; earlier ones (accumulation) reduce nothing. Then, instead of loss.backward(),
  // backward(loss): returns when all gradients are sums. Throws Disagreement naming the parameters that this rank's
  // backward gave no gradient, and what Group::sum throws.
  void begin();
  void backward(const at::Tensor& loss);
  // For a rank without a row in this step: zeros, or what it has accumulated.
  void backward_of_nothing();

  // Were this rank's own gradients of the last backward finite, before they were summed? (Finite ones whose plain sum
  // overflows count as not finite.) Waits for the device.
  [[nodiscard]] bool own_were_finite() const;

  // Of the last step. Zero on a GPU, whose work goes on when the host has given it all.
  struct Overlap {
    double reducing_s = 0;    // at least one bucket was under way
    double overlapped_s = 0;  // of it, while backward still computed
    [[nodiscard]] double share() const { return reducing_s > 0 ? overlapped_s / reducing_s : 0; }
  };
  [[nodiscard]] Overlap overlap() const;
  [[nodiscard]] std::size_t buckets() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace nsa::parallel
