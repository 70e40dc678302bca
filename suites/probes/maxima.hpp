// The largest |x| of each row of tensors that are given one after the other, by few launches: on a GPU tensors wait
// until there are enough of them for one (row_maxima.hpp). On a CPU, where nothing is gained by that, each is looked at
// when it is given.
//
// Note [What waits]
// A tensor that waits keeps its memory, which a step would otherwise use again, above all that of gradients: 32 MiB at
// most are kept so (kMostKept), unless somebody else keeps them anyway, as parameters keep their gradients. A GPU of
// 4 TB/s reads them in 8 us, several times what a launch costs, so that larger batches gain nothing; and they are
// little beside the activations of a step that has tensors of such sizes.
//
// Whoever holds the tensor may write into it meanwhile, and what was there before is lost. Autograd itself does not: it
// adds gradients in place only where nobody else holds their memory. Others are found out by the tensor's version, and
// then all() throws StageOverwritten: no answer, where before there was one. The step is to be made again with every
// tensor looked at at once (Look::at_once).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "suites/probes/row_maxima.hpp"

namespace suites::probes {

// Says which stage was written in place before it was looked at.
class StageOverwritten : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Look { in_batches, at_once };

// Not for several threads at once.
class Maxima {
 public:
  static constexpr std::size_t kMostKept = std::size_t{32} << 20;  // bytes; Note [What waits]
  explicit Maxima(Look look, std::size_t most_kept = kMostKept) : look_(look), most_kept_(most_kept) {}

  struct Place {
    std::size_t batch = 0, slot = 0;
  };
  // To be given on the stream that made it. `name` is what an error calls it.
  Place add(std::string_view name, const TensorRows& tensor);
  [[nodiscard]] bool waits() const { return !waiting_.empty(); }
  // Looks at what waits, on the stream on which it was given; the current one waits for that. Also within the capture
  // of a CUDA graph, whose replays then look anew. What was given within one must be looked at within it: otherwise
  // std::logic_error, since no replay would.
  void look();
  void clear();

  // All of them end to end, fp32 or fp64, on the device; undefined without any. Nothing may wait.
  [[nodiscard]] at::Tensor all() const;
  [[nodiscard]] std::int64_t count() const;
  // Where a tensor's are in all(): first and count. One a row; of a tensor without rows one or several.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> of(Place place) const;

 private:
  struct Waiting {
    std::string name;
    TensorRows tensor;
    std::int64_t version;
  };

  [[nodiscard]] std::int64_t before(std::size_t batch) const;  // numbers

  Look look_;
  std::size_t most_kept_;
  std::vector<RowMaximaOf> batches_;  // the last one is empty while tensors wait for it
  std::vector<Waiting> waiting_;
  std::size_t waiting_for_ = 0;  // the batch
  std::size_t kept_ = 0;         // bytes
  std::optional<c10::Stream> stream_;
  bool capturing_ = false;
  std::string overwritten_;
};

}  // namespace suites::probes
