#include "harness/journal_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>

#include "base/files.hpp"
#include "base/fnv1a.hpp"
#include "base/stamp.hpp"
#include "harness/settings.hpp"
#include "reports/journal_rules.hpp"

namespace harness {

namespace {

// The error, 0 when the space is there (or cannot be asked for in this file system).
int put_reserve(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  const int error = posix_fallocate(fd, 0, JournalWriter::kReserveBytes);
  close(fd);
  if (error != 0) unlink(file.c_str());
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? error : 0;
}

// The first `size` bytes, less when there are no more.
std::string read_all(int fd, off_t size) {
  std::string text(static_cast<std::size_t>(size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

void replace_non_finite(Json& json) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) json = reports::number(json.get<double>());
  if (json.is_structured())
    for (Json& child : json) replace_non_finite(child);
}

}  // namespace

std::string to_line(const Json& event) {
  Json copy = event;
  replace_non_finite(copy);
  return copy.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

JournalWriter::JournalWriter(const std::filesystem::path& folder)
    : file_(folder / reports::kJournalFile), reserve_(folder / ".reserve"), hash_(base::kFnvOffset) {
  fd_ = open(file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw UsageError(fmt::format("{}: cannot be created: {}", file_.string(), std::strerror(errno)));
  if (const int error = put_reserve(reserve_); error != 0) {
    unlink(file_.c_str());
    close(fd_);
    throw InfrastructureError(fmt::format("{}: a run begins with {} KiB of free space: {}", folder.string(),
                                          kReserveBytes >> 10, std::strerror(error)));
  }
}

JournalWriter::~JournalWriter() {
  release_reserve();
  if (fd_ >= 0) close(fd_);
}

void JournalWriter::release_reserve() {
  try {
    check();
  } catch (const JournalLost&) {
    return;  // what lies there now belongs to somebody else
  }
  unlink(reserve_.c_str());
}

void JournalWriter::check() const {
  const auto lost = [this](std::string_view how) {
    return JournalLost(fmt::format("{}: {} while the run was going on; the run cannot be judged", file_.string(), how));
  };
  if (const std::string how = base::taken_away(fd_, file_); !how.empty()) throw lost(how);
  struct stat own {};
  if (fstat(fd_, &own) != 0) throw lost(std::strerror(errno));
  if (own.st_size < size_) throw lost("cut");
  if (own.st_size > size_ && !torn_) throw lost("written to by another process");
}

reports::Run JournalWriter::read_back() const {
  check();
  const std::string text = read_all(fd_, size_);
  if (static_cast<off_t>(text.size()) != size_ || base::fnv1a(base::kFnvOffset, text) != hash_)
    throw JournalLost(fmt::format("{}: does not hold what the run wrote; the run cannot be judged", file_.string()));
  std::istringstream stream(text);
  return reports::read_journal(stream, file_.string());
}

std::optional<std::string> JournalWriter::adopt() try {
  struct stat own {};
  if (fstat(fd_, &own) != 0) throw JournalLost(fmt::format("{}: {}", file_.string(), std::strerror(errno)));
  std::string text = read_all(fd_, own.st_size);
  const bool torn = !text.empty() && text.back() != '\n';
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  torn_ = torn && ftruncate(fd_, static_cast<off_t>(text.size())) != 0;
  size_ = static_cast<off_t>(text.size());
  hash_ = base::fnv1a(base::kFnvOffset, text);
  check();
  guard_ = {};
  seq_ = 0;
  std::optional<std::string> in_flight;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); ++seq_) {
    const Json event = Json::parse(line);
    guard_.apply(event);
    if (event.at("event") == "case_begin") in_flight = event.at("case").get<std::string>();
    if (event.at("event") == "case_end" && in_flight == event.at("case").get<std::string>()) in_flight.reset();
  }
  return in_flight;
} catch (const JournalLost&) {
  throw;
} catch (const std::exception& error) {
  throw JournalLost(fmt::format("{}: does not hold what a run writes: {}", file_.string(), error.what()));
}

reports::Run JournalWriter::told() const {
  reports::RunBuilder copy = guard_;
  return copy.finish(torn_);
}

void JournalWriter::append(const Json& event) {
  check();
  Json stamped = {{"event", event.at("event")}, {"t", base::timestamp()}, {"seq", seq_}};
  stamped.update(event);
  const std::string line = to_line(stamped);
  if (line.size() > reports::kMostLineBytes)
    throw std::invalid_argument(fmt::format("an event ('{}') of {} bytes; allowed are {}",
                                            event.at("event").get<std::string>(), line.size(),
                                            reports::kMostLineBytes));
  if (static_cast<std::uint64_t>(size_) + line.size() > reports::kMostJournalBytes)
    throw InfrastructureError(
        fmt::format("{}: longer than {} MiB, which no reader takes", file_.string(), reports::kMostJournalBytes >> 20));
  guard_.apply(Json::parse(line));
  if (const int error = base::write_fully(fd_, line.data(), line.size()); error != 0) {
    torn_ = ftruncate(fd_, size_) != 0;  // a torn last line is expected by every reader
    throw InfrastructureError(fmt::format("{}: cannot be written: {}", file_.string(), std::strerror(error)));
  }
  size_ += static_cast<off_t>(line.size());
  hash_ = base::fnv1a(hash_, line);
  ++seq_;
}

}  // namespace harness
