#include "harness/run_folder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>

#include "base/streams.hpp"
#include "harness/journal_writer.hpp"
#include "harness/settings.hpp"

namespace harness {

namespace fs = std::filesystem;

namespace {

// All that a run ever puts at the top of its folder, but for its lock, which is never removed.
constexpr std::array kOwnNames{"events.jsonl", "report.json", "report.md", "report.html",
                               "junit.xml",    "suites",      "logs",      ".reserve"};

// It has results, or nothing but what a run makes (one that was killed before its first event).
bool is_old_run(const fs::path& folder) {
  for (const char* name : {"events.jsonl", "report.json", "report.md", "report.html", "junit.xml"})
    if (fs::exists(folder / name)) return true;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name != FolderLock::kName && std::find(kOwnNames.begin(), kOwnNames.end(), name) == kOwnNames.end())
      return false;
  }
  return true;
}

bool holds_nothing(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != FolderLock::kName) return false;
  return true;
}

UsageError going_on(const fs::path& folder, const std::string& who) {
  return UsageError(
      fmt::format("--out: {} is in use by {}; wait for its end, or give another folder (--force does not "
                  "touch it)",
                  folder.string(), who));
}

// The nearest folder above that exists: where mkdir would begin.
fs::path existing_parent(fs::path path) {
  while (!path.empty() && !fs::exists(path) && path != path.parent_path()) path = path.parent_path();
  return path;
}

// The link is replaced in one step: it always leads to some run, also while several begin.
void point_latest_to(const fs::path& folder) {
  std::error_code error;  // a convenience: without links the run goes on
  const fs::path link = folder.parent_path() / "latest";
  if (fs::exists(fs::symlink_status(link, error)) && !fs::is_symlink(link, error)) return;
  const fs::path made = folder.parent_path() / (".latest-" + folder.filename().string());
  fs::create_directory_symlink(folder.filename(), made, error);
  if (!error) fs::rename(made, link, error);
  if (error) fs::remove(made, error);
}

}  // namespace

std::string new_run_id() {
  std::random_device device;
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y%m%dT%H%M%SZ}-{:04x}", fmt::gmtime(now), device() & 0xffff);
}

RunFolder::RunFolder(const std::optional<fs::path>& out, const std::string& run_id, bool force) try
    : path_(fs::absolute(out ? *out : fs::path("out") / run_id).lexically_normal()),
      run_id_(run_id),
      by_default_(!out),
      force_(force) {
  if (path_.filename().empty()) path_ = path_.parent_path();  // "folder/"
  if (fs::exists(path_)) {
    if (!fs::is_directory(path_)) throw UsageError(fmt::format("--out: {} is not a folder", path_.string()));
    if (const auto who = FolderLock::holder(path_)) throw going_on(path_, *who);
    refuse_unusable();
  }
  const fs::path parent = existing_parent(path_);
  if (!fs::is_directory(parent)) throw UsageError(fmt::format("--out: {} is not a folder", parent.string()));
  if (access(parent.c_str(), W_OK | X_OK) != 0)
    throw UsageError(fmt::format("--out: {} cannot be written: {}", parent.string(), std::strerror(errno)));
  const fs::space_info space = fs::space(parent);
  if (space.capacity > 0 && space.available < JournalWriter::kReserveBytes)
    throw InfrastructureError(fmt::format("--out: no space left in {}; a run begins with {} KiB free", parent.string(),
                                          JournalWriter::kReserveBytes >> 10));
} catch (const fs::filesystem_error& error) {
  throw UsageError(fmt::format("--out: {}: {}", error.path1().string(), error.code().message()));
}

void RunFolder::refuse_unusable() const {
  if (holds_nothing(path_)) return;
  if (!is_old_run(path_))
    throw UsageError(
        fmt::format("--out: {} is not empty and not an old run; give a new or empty folder", path_.string()));
  if (!force_) throw UsageError(fmt::format("--out: {} holds an old run; --force replaces it", path_.string()));
}

void RunFolder::create() try {
  fs::create_directories(path_);
  path_ = fs::canonical(path_);
  lock_.emplace(path_, "run " + run_id_);
  switch (lock_->state()) {
    case FolderLock::State::held:
      break;
    case FolderLock::State::busy:
      throw going_on(path_, lock_->why());
    case FolderLock::State::unwritable:
      throw UsageError(fmt::format("--out: {} cannot be written: {}", path_.string(), lock_->why()));
    case FolderLock::State::unlockable:  // the journal notices who else writes there
      base::err("warning: {} cannot be locked: {}; see to it that no other run uses it\n", path_.string(),
                lock_->why());
  }
  refuse_unusable();  // again: until now others could come first
  if (force_)
    for (const char* name : kOwnNames) fs::remove_all(path_ / name);
  fs::create_directories(path_ / "logs");
  if (by_default_) point_latest_to(path_);
} catch (const fs::filesystem_error& error) {
  throw UsageError(fmt::format("--out: {}: {}", error.path1().string(), error.code().message()));
}

}  // namespace harness
