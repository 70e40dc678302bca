#include "nsa/train/deal.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

namespace nsa::train {

Batch share_of(const Batch& batch, std::int64_t place, int rank, int size) {
  if (batch.cu_seqlens) return place % size == rank ? batch : Batch{};
  const std::int64_t rows = batch.tokens.size(0), begin = rank * rows / size, end = (rank + 1) * rows / size;
  if (begin == end) return {};
  return {batch.tokens.narrow(0, begin, end - begin), {}};
}

std::string deal_refusal(const TrainConfig& config, int size) {
  const std::int64_t given = config.packed ? config.accumulate_grad_batches : config.batch_size;
  if (size < 2 || given % size == 0) return "";
  const std::int64_t below = given / size * size, above = below + size;
  return fmt::format("{} = {}: {} ranks share the {} of a step evenly, so it must be a multiple of {}: {}{}",
                     config.packed ? "train.accumulate_grad_batches" : "train.batch_size", given, size,
                     config.packed ? "packed batches" : "rows of a batch", size,
                     below > 0 ? fmt::format("{} or ", below) : "", above);
}

}  // namespace nsa::train
