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

// Sizes of buckets. A sum of 25 MiB (as PyTorch's DDP has them) runs near the full pace of NVLink or InfiniBand, and is
// far shorter than the part of backward that makes the next one. Nothing hides the last one: it begins when backward
// ends. So that is a small one: what the first layer's attention and the embedding hold in a model of width 768.
struct BucketSizes {
  std::int64_t bytes = GradientSums::kBucketBytes;
  std::int64_t last_bytes = 4 << 20;
};
// NPROC_SUM_BUCKET_KB, where it is set, is `bytes` (in KiB), and bounds last_bytes too; 0 is one bucket for all, and by
// that one sum after backward. Throws base::EnvironmentInvalid.
[[nodiscard]] BucketSizes bucket_sizes(const base::Environment& environment);

// Which tensors are in which bucket, by their numbers; in the order of the sums, from the last tensor to the first, as
// backward goes. It depends on sizes and dtypes alone. A bucket holds one dtype, and at least one tensor.
[[nodiscard]] std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<at::Tensor>& tensors,
                                                                 const BucketSizes& sizes);

class GradientBuckets {
 public:
  // Sums in place over all ranks, on the current stream.
  using Sum = std::function<void(at::Tensor& bucket, const std::string& name)>;

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

  // Of the last step: the plain sum of each bucket's own elements before all ranks' took their place; scalars.
  [[nodiscard]] const std::vector<at::Tensor>& own_sums() const;
  [[nodiscard]] std::size_t buckets() const;
  [[nodiscard]] std::int64_t elements() const;  // of all buckets
  // Their memory is taken by the first step, and lives until release(). What a graph holds must be taken before it is
  // captured: else it would be the graph's own.
  void allocate();
  void release();

 private:
  struct Inside;
  std::shared_ptr<Inside> inside_;  // the hooks know it weakly
};

}  // namespace nsa::parallel
