#include "nsa/train/data_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "base/fnv1a.hpp"

namespace nsa::train {

namespace {

constexpr std::int64_t kFingerprinted = 64 << 10;  // bytes at either end

std::string reason_of(int code) { return std::generic_category().message(code); }

}  // namespace

std::runtime_error DataFile::error(const std::string& reason) const {
  return std::runtime_error(fmt::format("text {}: {}", path_.string(), reason));
}

DataFile::DataFile(std::filesystem::path path) : path_(std::move(path)) {
  // Looked at before it is opened, which would wait for ever at a named pipe.
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) throw error(errno == ENOENT ? "does not exist" : reason_of(errno));
  if (!S_ISREG(status.st_mode)) throw error("is not a regular file");
  if (status.st_size == 0) throw error("is empty");
  bytes_ = status.st_size;
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw error("cannot be opened: " + reason_of(errno));
}

DataFile::DataFile(DataFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}

DataFile::~DataFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void DataFile::read(std::int64_t offset, std::span<std::uint8_t> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const auto got = ::pread(descriptor_, into.data() + done, into.size() - done,
                             static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw error(fmt::format("cannot be read at byte {}: {}", offset, reason_of(errno)));
    if (got == 0) throw shrunk();
    done += static_cast<std::size_t>(got);
  }
}

std::runtime_error DataFile::shrunk() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return error("cannot be looked at: " + reason_of(errno));
  return error(fmt::format("has {} bytes, it had {} when it was opened", status.st_size, bytes_));
}

std::string DataFile::fingerprint() const {
  std::uint64_t hash = base::kFnvOffset;
  std::vector<std::uint8_t> ends(static_cast<std::size_t>(std::min(bytes_, kFingerprinted)));
  for (const std::int64_t offset : {std::int64_t{0}, std::max<std::int64_t>(0, bytes_ - kFingerprinted)}) {
    read(offset, ends);
    hash = base::fnv1a(hash, {reinterpret_cast<const char*>(ends.data()), ends.size()});
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace nsa::train
