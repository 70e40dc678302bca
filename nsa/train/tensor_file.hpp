// Files of named tensors in the safetensors format: 8 bytes of header length, a JSON header, the tensors end to end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "nsa/train/hash.hpp"

namespace nsa::train {

// Not such a file, or not a whole one: path and reason.
class TensorFileInvalid : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The format's name for a dtype, "BF16". Throws std::invalid_argument where it has none.
[[nodiscard]] const char* dtype_name(at::ScalarType type);

// Reads such a file from front to end. What its writer promises in the header is held against the bytes: names, dtypes,
// shapes, no gap, nothing behind the last tensor.
class TensorFileReader {
 public:
  // Reads the header. Throws TensorFileInvalid, as next() does, and FileError for a file that cannot be opened.
  explicit TensorFileReader(const std::filesystem::path& file);

  // The header's "__metadata__"; an empty object without one.
  [[nodiscard]] const nlohmann::json& metadata() const { return metadata_; }
  // The next tensor as it lies in the file, on the CPU; nothing after the last.
  struct Named {
    std::string name;
    at::Tensor value;
  };
  [[nodiscard]] std::optional<Named> next();
  [[nodiscard]] std::uint64_t hash() const { return hash_.value(); }  // Hash64 of every byte that was read so far

 private:
  struct Entry {
    std::string name;
    at::ScalarType type;
    std::vector<std::int64_t> shape;
    std::uint64_t begin, end;
  };

  void read(void* data, std::uint64_t bytes);
  void read_header();
  [[nodiscard]] std::uint64_t bytes_of(const Entry& entry) const;
  [[noreturn]] void refuse(const std::string& reason) const;

  std::filesystem::path file_;
  std::ifstream stream_;
  std::uint64_t left_ = 0;
  Hash64 hash_;
  nlohmann::json metadata_ = nlohmann::json::object();
  std::vector<Entry> entries_;  // in the order in which they lie in the file
  std::size_t next_ = 0;
};

}  // namespace nsa::train
