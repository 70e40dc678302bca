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

#include "harness/settings.hpp"

namespace harness {

namespace fs = std::filesystem;

namespace {

// All that a run ever puts at the top of its folder.
constexpr std::array kOwnNames{"events.jsonl", "report.json", "report.md", "report.html",
                               "junit.xml",    "suites",      "logs",      ".reserve"};

// It has results, or nothing but what a run makes (one that was killed before its first event).
bool is_old_run(const fs::path& folder) {
  for (const char* name : {"events.jsonl", "report.json", "report.md", "report.html", "junit.xml"})
    if (fs::exists(folder / name)) return true;
  for (const auto& entry : fs::directory_iterator(folder))
    if (std::find(kOwnNames.begin(), kOwnNames.end(), entry.path().filename().string()) == kOwnNames.end())
      return false;
  return true;
}

// The nearest folder above that exists: where mkdir would begin.
fs::path existing_parent(fs::path path) {
  while (!path.empty() && !fs::exists(path) && path != path.parent_path()) path = path.parent_path();
  return path;
}

void point_latest_to(const fs::path& folder) {
  std::error_code ignored;  // a convenience: without links the run goes on
  const fs::path link = folder.parent_path() / "latest";
  if (fs::exists(fs::symlink_status(link, ignored)) && !fs::is_symlink(link, ignored)) return;
  fs::remove(link, ignored);
  fs::create_directory_symlink(folder.filename(), link, ignored);
}

}  // namespace

std::string new_run_id() {
  std::random_device device;
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y%m%dT%H%M%SZ}-{:04x}", fmt::gmtime(now), device() & 0xffff);
}

RunFolder::RunFolder(const std::optional<fs::path>& out, const std::string& run_id, bool force) try
    : path_(fs::absolute(out ? *out : fs::path("out") / run_id).lexically_normal()), by_default_(!out), force_(force) {
  if (path_.filename().empty()) path_ = path_.parent_path();  // "folder/"
  if (fs::exists(path_) && !fs::is_directory(path_))
    throw UsageError(fmt::format("--out: {} is not a folder", path_.string()));
  if (fs::exists(path_) && !fs::is_empty(path_)) {
    if (!is_old_run(path_))
      throw UsageError(
          fmt::format("--out: {} is not empty and not an old run; give a new or empty folder", path_.string()));
    if (!force_) throw UsageError(fmt::format("--out: {} holds an old run; --force replaces it", path_.string()));
  }
  const fs::path parent = existing_parent(path_);
  if (!fs::is_directory(parent)) throw UsageError(fmt::format("--out: {} is not a folder", parent.string()));
  if (access(parent.c_str(), W_OK | X_OK) != 0)
    throw UsageError(fmt::format("--out: {} cannot be written: {}", parent.string(), std::strerror(errno)));
} catch (const fs::filesystem_error& error) {
  throw UsageError(fmt::format("--out: {}: {}", error.path1().string(), error.code().message()));
}

void RunFolder::create() const try {
  if (force_)
    for (const char* name : kOwnNames) fs::remove_all(path_ / name);
  fs::create_directories(path_ / "logs");
  if (by_default_) point_latest_to(path_);
} catch (const fs::filesystem_error& error) {
  throw UsageError(fmt::format("--out: {}: {}", error.path1().string(), error.code().message()));
}

}  // namespace harness
