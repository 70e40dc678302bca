// Text as bytes in memory: for texts small enough to be held whole, as the checks use them. A run reads with
// open_stream (stream.hpp), whose random crops are the same ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

namespace nsa::train {

// The whole file as uint8 [bytes]. Throws std::runtime_error with the path and the reason (missing, unreadable, empty).
[[nodiscard]] at::Tensor read_bytes(const std::filesystem::path& file);

// Random crops: every batch is [batch, seq_len + 1] int64, start positions drawn from a generator of its own (seeded;
// independent of torch's). Throws std::runtime_error when the text is shorter than seq_len + 1.
class RandomCrops {
 public:
  RandomCrops(at::Tensor bytes, std::int64_t batch, std::int64_t seq_len, std::uint64_t seed);
  [[nodiscard]] at::Tensor next();

 private:
  at::Tensor bytes_;
  std::int64_t batch_, seq_len_;
  std::uint64_t state_;
};

}  // namespace nsa::train
