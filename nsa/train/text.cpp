#include "nsa/train/text.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <fstream>
#include <stdexcept>

namespace nsa::train {

namespace {

// splitmix64 (Steele, Lea, Flood 2014): one addition and three mixes a number, and any seed will do.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// Uniform in [0, count): the numbers beyond the last whole multiple of count are drawn again.
std::uint64_t next_below(std::uint64_t& state, std::uint64_t count) {
  const std::uint64_t surplus = (~count + 1) % count;  // 2^64 mod count
  std::uint64_t drawn = next_random(state);
  while (drawn < surplus) drawn = next_random(state);
  return drawn % count;
}

}  // namespace

at::Tensor read_bytes(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& reason) -> std::runtime_error {
    return std::runtime_error(fmt::format("text {}: {}", file.string(), reason));
  };
  std::error_code error;
  if (!std::filesystem::exists(file, error)) throw refuse("does not exist");
  if (!std::filesystem::is_regular_file(file, error)) throw refuse("is not a regular file");
  const auto size = std::filesystem::file_size(file, error);
  if (error) throw refuse(error.message());
  if (size == 0) throw refuse("is empty");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw refuse("cannot be opened");
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  stream.read(reinterpret_cast<char*>(bytes.mutable_data_ptr<std::uint8_t>()), static_cast<std::streamsize>(size));
  if (static_cast<std::uintmax_t>(stream.gcount()) != size)
    throw refuse(fmt::format("{} of {} bytes could be read", stream.gcount(), size));
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
    const auto start = static_cast<std::int64_t>(next_below(state_, starts));
    tokens[row].copy_(bytes_.narrow(0, start, length));
  }
  return tokens;
}

}  // namespace nsa::train
