#include "harness/worker_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/files.hpp"
#include "harness/journal_writer.hpp"

namespace harness {

namespace {
constexpr std::size_t kTailBytes = 4096;
constexpr std::size_t kTailLines = 20;
constexpr const char* kHeading = "--- case ";
}  // namespace

std::string WorkerLog::heading(const std::string& case_id) { return kHeading + case_id + "\n"; }

WorkerLog::WorkerLog(const std::filesystem::path& file, std::size_t limit_bytes)
    : fd_(base::open_own(file, O_WRONLY | O_CREAT | O_APPEND)), limit_(limit_bytes) {
  if (fd_.get() < 0 && errno == ELOOP)
    throw InfrastructureError(
        fmt::format("{}: cannot be written: it or its folder is a link, which is not followed", file.string()));
}

WorkerLog::~WorkerLog() {
  if (dropped_ == 0) return;
  put(fmt::format("\n[... {} bytes cut off; the last lines follow ...]\n", dropped_));
  for (const std::string& line : last_lines()) put(line + "\n");
}

// A log that cannot be written is not worth a run; a full disk shows at the journal.
void WorkerLog::put(std::string_view bytes) {
  if (fd_.get() >= 0 && write(fd_.get(), bytes.data(), bytes.size()) < 0) fd_.reset();
}

void WorkerLog::add(std::string_view bytes) {
  const std::size_t fits = std::min(bytes.size(), limit_ - written_);
  if (fits > 0) put(bytes.substr(0, fits));
  written_ += fits;
  dropped_ += bytes.size() - fits;
  tail_.append(bytes.substr(bytes.size() - std::min(bytes.size(), kTailBytes)));
  if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
}

std::vector<std::string> WorkerLog::last_lines() const {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < tail_.size();) {
    const std::size_t end = std::min(tail_.find('\n', begin), tail_.size());
    lines.push_back(tail_.substr(begin, end - begin));
    if (lines.back().starts_with(kHeading)) lines.clear();
    begin = end + 1;
  }
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  return lines;
}

}  // namespace harness
