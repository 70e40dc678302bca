#include "nsa/train/hash.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

namespace nsa::train {

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

// Each step is one-to-one in the state and in the word.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15;
  return state ^ (state >> 32);
}

}  // namespace

void Hash64::add(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  const auto* const end = next + bytes;
  std::size_t filled = length_ % kWord;
  length_ += bytes;
  while (next != end) {
    if (filled == 0) {
      for (; end - next >= static_cast<std::ptrdiff_t>(kWord); next += kWord) {
        std::uint64_t word = 0;
        std::memcpy(&word, next, kWord);
        state_ = mix(state_, word);
      }
    }
    for (; filled < kWord && next != end; ++filled) word_ |= std::uint64_t{*next++} << (8 * filled);
    if (filled < kWord) return;
    state_ = mix(state_, word_);
    word_ = 0;
    filled = 0;
  }
}

std::uint64_t Hash64::value() const { return mix(mix(state_, word_), length_); }

std::string Hash64::hex() const { return fmt::format("{:016x}", value()); }

std::string weights_hash(const torch::nn::Module& module) {
  Hash64 hash;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor value = parameter.value().detach().contiguous().cpu();
    hash.add(fmt::format("{} {} {}\n", parameter.key(), c10::toString(value.scalar_type()), value.sizes()));
    hash.add(value.const_data_ptr(), value.nbytes());
  }
  return hash.hex();
}

}  // namespace nsa::train
