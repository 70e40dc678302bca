#include "nsa/train/text.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <stdexcept>

#include "base/random.hpp"
#include "nsa/train/data_file.hpp"

namespace nsa::train {

at::Tensor read_bytes(const std::filesystem::path& file) {
  const DataFile data(file);
  at::Tensor bytes = at::empty({data.bytes()}, at::kByte);
  data.read(0, {bytes.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(data.bytes())});
  return bytes;
}

RandomCrops::RandomCrops(at::Tensor bytes, std::int64_t batch, std::int64_t seq_len, std::uint64_t seed)
    : bytes_(std::move(bytes)), batch_(batch), seq_len_(seq_len), state_(seed) {
  if (batch < 1 || seq_len < 1)
    throw std::runtime_error(fmt::format("crops of {} x {} tokens: both must be at least 1", batch, seq_len));
  if (bytes_.dim() != 1 || bytes_.scalar_type() != at::kByte || !bytes_.is_cpu())
    throw std::runtime_error("crops: the text must be a uint8 vector on the CPU");
  if (bytes_.numel() < seq_len + 1)
    throw std::runtime_error(fmt::format("text of {} bytes is shorter than a crop: seq_len {} needs {}", bytes_.numel(),
                                         seq_len, seq_len + 1));
}

at::Tensor RandomCrops::next() {
  const std::int64_t length = seq_len_ + 1;
  at::Tensor tokens = at::empty({batch_, length}, at::kLong);
  const auto starts = static_cast<std::uint64_t>(bytes_.numel() - length + 1);
  for (std::int64_t row = 0; row < batch_; ++row) {
    const auto start = static_cast<std::int64_t>(base::next_below(state_, starts));
    tokens[row].copy_(bytes_.narrow(0, start, length));
  }
  return tokens;
}

}  // namespace nsa::train
