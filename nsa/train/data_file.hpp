// A file of training data, read by position: no seek state, no buffer, any number of readers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>

namespace nsa::train {

class DataFile {
 public:
  // Throws std::runtime_error ("text PATH: reason") when it is missing, not a regular file, unreadable or empty.
  explicit DataFile(std::filesystem::path path);
  DataFile(DataFile&& other) noexcept;
  DataFile& operator=(DataFile&&) = delete;
  ~DataFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // When it was opened. What is appended later is not read: a run sees the same data whenever it is asked.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  // FNV-1a of the first and the last 64 KiB, 16 hex digits: tells another file of the same size, for two reads.
  [[nodiscard]] std::string fingerprint() const;
  // Fills `into` with the bytes from `offset` on. Throws std::runtime_error when they are not there (any more).
  void read(std::int64_t offset, std::span<std::uint8_t> into) const;

  [[nodiscard]] std::runtime_error error(const std::string& reason) const;  // "text PATH: reason"

 private:
  [[nodiscard]] std::runtime_error shrunk() const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
};

}  // namespace nsa::train
