// The gradients of a step in a few buffers (buckets), each summed over all ranks as soon as backward has made what it
// holds. For a step that a CUDA graph holds: nothing moves, no host waits, and the sums are on a stream of their own
// beside backward. The Reducer behind GradientSums cannot be captured: it asks for events, and keeps times of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.hpp"
#include "nsa/parallel/gradient_sums.hpp"

namespace nsa::parallel {

// Sizes of buckets. Few and large ones: each costs the backward pass of a graph a fork, some 0.05 ms, whatever its size
// is. A sum of 80 MiB takes 0.3 ms between two H100 and 0.5 between eight; of a model of width 768 it ends before the
// backward pass of the first layer's attention does. Nothing hides the last bucket, which begins when backward ends. So
// that is a small one: what the first layer's attention and the embedding hold in such a model.
struct BucketSizes {
  std::int64_t bytes = 80 << 20;
  std::int64_t last_bytes = 4 << 20;
  // A gradient from this size on is summed where it lies. To copy smaller ones, all of a bucket in one launch, costs
  // less than a sum for each.
  std::int64_t lying_bytes = 256 << 10;
};
// NPROC_SUM_BUCKET_KB, where it is set, is `bytes` (in KiB), and bounds last_bytes too, and by its sixteenth
// lying_bytes; 0 is one bucket for all, and by that one sum after backward. Throws base::EnvironmentInvalid.
[[nodiscard]] BucketSizes bucket_sizes(const base::Environment& environment);

// Which tensors are in which bucket, by their numbers; in the order of the sums, from the last tensor to the first, as
// backward goes. It depends on sizes and dtypes alone. A bucket holds one dtype, and at least one tensor.
[[nodiscard]] std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<at::Tensor>& tensors,
                                                                 const BucketSizes& sizes);

class GradientBuckets {
 public:
  // What is summed at once: own[i] over all ranks into sums[i]. An own tensor is a gradient where autograd made it, or
  // many small ones in one tensor. It stays what it is.
  struct Part {
    std::string name;
    std::vector<at::Tensor> own, sums;  // contiguous
    at::Tensor whole;                   // holds all of `sums`, and zeros between them
    // For a sum in place: `whole`, with what is own where its sum belongs.
    at::Tensor& gathered();
  };
  // Sums over all ranks, on the current stream.
  using Sum = std::function<void(Part& part)>;

  // `rank`: for the message of an error. Sets a hook on each parameter.
  GradientBuckets(NamedTensors parameters, int rank, BucketSizes sizes, Sum sum);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Instead of loss.backward(), for the last backward pass of a step: sums each bucket as soon as all its gradients are
  // there and all buckets before it were begun. So the order of the sums is the same on all ranks, whatever order
  // autograd takes. With `beside` they are given to that stream, which waits for the current one where it must. A
  // parameter that gets two gradients in one pass is a std::logic_error: its bucket may be gone already.
  void backward(const at::Tensor& loss, const std::optional<c10::Stream>& beside = std::nullopt);
  // Then, or without it: sums the buckets that are left, and the current stream waits for `beside`. Afterwards the
  // parameters' gradients are views of the buckets: the sums. Throws Disagreement naming the parameters without a
  // gradient before it sums what they belong to. What the sum throws goes through both.
  void finish();

  // This rank's own gradients of the last step, before they were summed, as autograd made them; until forget_own(). A
  // step that is accumulated anew begins with that, or both would take memory.
  [[nodiscard]] const std::vector<at::Tensor>& own() const;
  void forget_own();
  [[nodiscard]] std::size_t buckets() const;
  [[nodiscard]] std::int64_t elements() const;  // of all buckets
  // Their memory is taken by the first step, and stays. What a graph holds must be taken before it is captured: else it
  // would be the graph's own, and gone while the other ranks may still have it open (captured.cpp).
  void allocate();

 private:
  struct Inside;
  std::shared_ptr<Inside> inside_;  // the hooks know it weakly
};

}  // namespace nsa::parallel
