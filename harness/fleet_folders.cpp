#include "harness/fleet_folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "base/files.hpp"
#include "base/folder_lock.hpp"
#include "harness/run_folder.hpp"
#include "harness/verbs.hpp"
#include "reports/read_run.hpp"

namespace harness {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFolders = 100'000;
constexpr std::size_t kMostAtOnce = 4;
constexpr std::uintmax_t kLargeBytes = std::uintmax_t{8} << 20;  // of these one at a time is in memory

bool is_there(const fs::path& file) {
  std::error_code error;
  return fs::exists(fs::symlink_status(file, error));
}
bool has_run(const fs::path& folder) {
  return is_there(folder / reports::kJournalFile) || is_there(folder / reports::kReportFile);
}

fs::path folder_given(const std::string& given) {
  std::error_code error;
  fs::path folder = fs::canonical(given, error);
  if (error) throw UsageError(fmt::format("merge: {}: cannot be read: {}", given, error.message()));
  if (!fs::is_directory(folder))
    throw UsageError(fmt::format("merge: {} is no folder; give run folders, or folders of run folders", given));
  return folder;
}

// The folders and links in it, by name.
std::vector<fs::path> entries_of(const fs::path& folder, const std::string& given) try {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (hidden || !(entry.is_symlink() || entry.is_directory())) continue;
    entries.push_back(entry.path());
    if (entries.size() > kMostFolders)
      throw UsageError(fmt::format("merge: {} holds more than {} folders", given, kMostFolders));
  }
  std::sort(entries.begin(), entries.end());
  return entries;
} catch (const fs::filesystem_error& error) {
  throw UsageError(fmt::format("merge: {}: cannot be read: {}", given, error.code().message()));
}

// Apart from what is hidden: a lock, say.
bool has_nothing(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (!entry->path().filename().string().starts_with('.')) return false;
  return !error;
}

HostFolder without_run(const fs::path& folder) {
  if (has_nothing(folder)) return {folder, "is empty: the run did not begin", true};
  return {folder, fmt::format("holds neither {} nor {}: the run did not begin, or this is no run's folder",
                              reports::kJournalFile, reports::kReportFile)};
}

// A link is left out where it leads to one of its neighbours, or to a file.
std::optional<HostFolder> link_of(const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::canonical(link, error);
  if (error) return HostFolder{link, fmt::format("is a link that leads nowhere: {}", error.message())};
  if (!fs::is_directory(target, error) || target.parent_path() == link.parent_path()) return std::nullopt;
  return HostFolder{link, "is a link, which is not followed; give the folder that it leads to"};
}

void add_folders_in(const fs::path& folder, const std::string& given, std::vector<HostFolder>& to) {
  for (const fs::path& entry : entries_of(folder, given)) {
    std::error_code error;
    if (fs::is_symlink(fs::symlink_status(entry, error))) {
      if (auto link = link_of(entry)) to.push_back(std::move(*link));
    } else if (has_run(entry)) {
      to.push_back({entry, ""});
    } else if (!is_there(entry / reports::kFleetFile)) {
      to.push_back(without_run(entry));
    }
  }
}

// "" where the file can be read as a whole.
std::string why_not(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(file, error);
  if (fs::is_symlink(status)) return "is a link, which is not followed";
  if (!fs::is_regular_file(status)) return "is no regular file";
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (error) return fmt::format("cannot be read: {}", error.message());
  if (bytes > kMostBytesOfHost)
    return fmt::format("has {} MiB, at most {} MiB are read of a host", bytes >> 20, kMostBytesOfHost >> 20);
  return "";
}

// A journal of which not even the first record is whole.
bool only_begins(const fs::path& file) {
  constexpr std::size_t kOfARecord = std::size_t{1} << 20;
  std::error_code error;
  if (fs::file_size(file, error) > kOfARecord || error) return false;
  return base::read_head(file, kOfARecord).find('\n') == std::string::npos;
}

std::string name_of(const fs::path& folder) { return folder.filename().string(); }

reports::FleetHost read_host(const Program& program, const HostFolder& folder, std::mutex& large) {
  const std::string path = folder.path.string();
  const auto unreadable = [&](const std::string& trouble, bool incompatible) {
    return reports::unreadable_host(name_of(folder.path), path, trouble, incompatible);
  };
  const auto not_begun = [&](const std::string& trouble) {
    return reports::missing_host(name_of(folder.path), path, trouble);
  };
  if (folder.not_begun) return not_begun(fmt::format("{} {}", path, folder.trouble));
  if (!folder.trouble.empty()) return unreadable(fmt::format("{} {}", path, folder.trouble), false);
  const bool journal = is_there(folder.path / reports::kJournalFile);
  const fs::path file = folder.path / (journal ? reports::kJournalFile : reports::kReportFile);
  if (const std::string why = why_not(file); !why.empty())
    return unreadable(fmt::format("{} {}", file.string(), why), false);
  try {
    if (journal && !is_there(folder.path / reports::kReportFile) && only_begins(file))
      return not_begun(fmt::format("{} has no whole record: the run did not get further", file.string()));
    const auto who = base::FolderLock::holder(folder.path / RunFolder::kLock);
    std::unique_lock<std::mutex> alone(large, std::defer_lock);
    if (fs::file_size(file) > kLargeBytes) alone.lock();
    const reports::Run run = journal ? reports::read_journal(file, reports::fact_of_fleet) : reports::read_report(file);
    if (const std::string other = other_program(program, run); !other.empty())
      return unreadable(fmt::format("{} {}", file.string(), other), false);
    reports::FleetHost host = reports::host_of(run, path);
    if (host.name.empty()) host.name = name_of(folder.path);
    if (who) host.state = reports::FleetHost::State::running;
    return host;
  } catch (const reports::JournalError& error) {
    return unreadable(error.what(), error.incompatible);
  } catch (const std::exception& error) {
    return unreadable(fmt::format("{}: {}", file.string(), error.what()), false);
  }
}

}  // namespace

std::vector<HostFolder> host_folders(const std::vector<std::string>& given) {
  std::vector<HostFolder> folders;
  std::string nothing;  // the first that was given and holds none
  std::size_t of_those = 0;
  for (const std::string& one : given) {
    const fs::path folder = folder_given(one);
    const std::size_t before = folders.size();
    if (has_run(folder))
      folders.push_back({folder, ""});
    else
      add_folders_in(folder, one, folders);
    if (folders.size() > before) continue;
    folders.push_back(without_run(folder));
    if (++of_those == 1) nothing = one;
  }
  if (of_those == folders.size())
    throw UsageError(
        fmt::format("merge: {} holds no run, and no folder of one; give run folders, or folders of them", nothing));
  std::set<fs::path> seen;
  for (const HostFolder& folder : folders)
    if (!seen.insert(folder.path).second)
      throw UsageError(fmt::format("merge: {} is given twice", folder.path.string()));
  return folders;
}

std::vector<reports::FleetHost> read_hosts(const Program& program, const std::vector<HostFolder>& folders) {
  std::vector<reports::FleetHost> hosts(folders.size());
  std::atomic<std::size_t> next = 0;
  std::mutex large;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < folders.size();) hosts[i] = read_host(program, folders[i], large);
  };
  std::vector<std::jthread> threads;
  const std::size_t at_once =
      std::min({kMostAtOnce, std::max<std::size_t>(std::thread::hardware_concurrency(), 1), folders.size()});
  while (threads.size() + 1 < at_once) threads.emplace_back(work);
  work();
  threads.clear();
  return hosts;
}

}  // namespace harness
