// A 64-bit hash for checksums and for asking whether two sets of weights are equal. Not cryptographic. Any change of a
// single word changes it for certain.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::train {

class Hash64 {
 public:
  void add(const void* data, std::size_t bytes);  // in pieces of any size: only the bytes and their order count
  void add(std::string_view text) { add(text.data(), text.size()); }
  [[nodiscard]] std::uint64_t value() const;
  [[nodiscard]] std::string hex() const;  // 16 digits

 private:
  std::uint64_t state_ = 0x2545F4914F6CDD1D;
  std::uint64_t word_ = 0;    // bytes that do not fill a word yet
  std::uint64_t length_ = 0;  // bytes so far
};

// Names, dtypes, shapes and bits of all parameters, in the order of registration, wherever they lie.
[[nodiscard]] std::string weights_hash(const torch::nn::Module& module);

}  // namespace nsa::train
