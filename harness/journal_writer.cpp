#include "harness/journal_writer.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "harness/settings.hpp"

namespace harness {

namespace {

constexpr off_t kReserveBytes = 1 << 20;

void put_reserve(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const bool failed = posix_fallocate(fd, 0, kReserveBytes) != 0;
  close(fd);
  if (failed) unlink(file.c_str());  // a nearly full disk: the journal will find out
}

void replace_non_finite(Json& json) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) json = reports::number(json.get<double>());
  if (json.is_structured())
    for (Json& child : json) replace_non_finite(child);
}

}  // namespace

std::string timestamp(std::chrono::system_clock::time_point time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
}

std::string to_line(const Json& event) {
  Json copy = event;
  replace_non_finite(copy);
  return copy.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

JournalWriter::JournalWriter(const std::filesystem::path& folder)
    : file_(folder / reports::kJournalFile), reserve_(folder / ".reserve") {
  fd_ = open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw UsageError(fmt::format("{}: cannot be created: {}", file_.string(), std::strerror(errno)));
  put_reserve(reserve_);
}

JournalWriter::~JournalWriter() {
  release_reserve();
  if (fd_ >= 0) close(fd_);
}

void JournalWriter::release_reserve() { unlink(reserve_.c_str()); }

void JournalWriter::append(const Json& event) {
  Json stamped = {{"event", event.at("event")}, {"t", timestamp(std::chrono::system_clock::now())}, {"seq", seq_}};
  stamped.update(event);
  const std::string line = to_line(stamped);
  guard_.apply(Json::parse(line));
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = write(fd_, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : ENOSPC;
      if (ftruncate(fd_, size_) != 0) {  // a torn last line is expected by every reader, so this may fail
      }
      throw InfrastructureError(fmt::format("{}: cannot be written: {}", file_.string(), std::strerror(error)));
    }
    written += static_cast<std::size_t>(n);
  }
  size_ += static_cast<long long>(line.size());
  ++seq_;
}

}  // namespace harness
