#include "nsa/train/run/training_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "base/files.hpp"
#include "base/stamp.hpp"
#include "base/streams.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/run/exit_code.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRecord = "run.json";
constexpr const char* kLock = ".lock";

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kRanks = "ranks";            // of the ranks besides the first, a folder each: rank_3
constexpr const char* kSchema = "nsa-train-run/";  // of every version

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The text between `begin` and `end`; nullopt when the name is not made so.
std::optional<std::string_view> between(std::string_view name, std::string_view begin, std::string_view end) {
  if (name.size() < begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end)) return std::nullopt;
  return name.substr(begin.size(), name.size() - begin.size() - end.size());
}

// What a run writes at the top of its folder, by name, but for checkpoints/. `.HALT` is not in it: it may be somebody's
// order to stop (halt_file.hpp).
bool belongs_to_run(const std::string& name) {
  for (const char* own : {kRecord, "metrics.csv", "validation.csv", "heartbeat.jsonl", "dtypes.txt", "stacks_crash.txt",
                          "stacks_ranks.txt"})
    for (const std::string_view end :
         {std::string_view(), AtomicFile::kTemporary, std::string_view(".old"), std::string_view(".damaged")})
      if (name == own + std::string(end)) return true;
  for (const char* begin : {"stacks_slow_step_", "stacks_hung_step_"})
    for (const char* end : {".txt", ".txt.tmp"})
      if (const auto step = between(name, begin, end); step && is_number(*step)) return true;
  return name == ".HALT.tmp" || name == ".HALT.stale";
}

// step_00000020.safetensors, one that is being written, one that was set aside.
bool is_checkpoint(std::string_view name) {
  for (const std::string_view end : {AtomicFile::kTemporary, std::string_view(".broken")})
    if (name.ends_with(end)) return CheckpointStore::step_of(name.substr(0, name.size() - end.size())).has_value();
  return CheckpointStore::step_of(name).has_value();
}

bool is_file(const fs::path& path) { return fs::is_regular_file(fs::symlink_status(path)); }
bool is_link(const fs::path& path) { return fs::is_symlink(fs::symlink_status(path)); }

bool holds_run(const fs::path& folder) {
  return fs::exists(folder / kRecord) || fs::exists(folder / kCheckpoints) || fs::exists(folder / "metrics.csv");
}

// What would be lost or written over: a name that a run uses; "" when there is none.
std::string in_the_way(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (std::string name = entry.path().filename(); name == kCheckpoints || name == kRanks || belongs_to_run(name))
      return name;
  return "";
}

// Of a run that goes on. A pipe would hold it for ever, a device swallow what it writes: told before one is opened. A
// folder with a checkpoint's name is set aside (CheckpointStore).
void refuse_what_is_no_file(const fs::path& folder) {
  const auto refuse = [](const fs::path& path, const char* is_not) {
    throw UsageError(fmt::format("{} is no {}: move it away, or give another folder", path.string(), is_not));
  };
  for (const auto& entry : fs::directory_iterator(folder))
    if (belongs_to_run(entry.path().filename()) && !entry.is_regular_file()) refuse(entry.path(), "regular file");
  const fs::path checkpoints = folder / kCheckpoints;
  if (!fs::exists(fs::symlink_status(checkpoints))) return;
  if (!fs::is_directory(checkpoints)) refuse(checkpoints, "folder");
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    const bool set_aside = entry.is_directory() && !name.ends_with(AtomicFile::kTemporary);
    if (is_checkpoint(name) && !entry.is_regular_file() && !set_aside) refuse(entry.path(), "regular file");
  }
}

struct OldRun {
  std::vector<fs::path> files, foreign;  // of the run; others among its checkpoints
};

// ranks/rank_3/heartbeat.jsonl, ...: by their names, as at the top.
template <typename Refuse>
void add_files_of_ranks(const fs::path& folder, OldRun& old, const Refuse& refuse) {
  const fs::path ranks = folder / kRanks;
  const fs::file_status status = fs::symlink_status(ranks);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) refuse(ranks, fs::is_symlink(status) ? "a link" : "no folder");
  for (const auto& rank : fs::directory_iterator(ranks)) {
    const std::string name = rank.path().filename();
    const auto number = between(name, "rank_", "");
    if (!number || !is_number(*number) || !rank.is_directory() || is_link(rank.path())) {
      old.foreign.push_back(rank.path());
      continue;
    }
    for (const auto& entry : fs::directory_iterator(rank.path())) {
      const bool own = belongs_to_run(entry.path().filename());
      if (own && !is_file(entry.path())) refuse(entry.path(), is_link(entry.path()) ? "a link" : "no regular file");
      (own ? old.files : old.foreign).push_back(entry.path());
    }
  }
}

// Throws UsageError when something else has the name of one of its files: a link leads to what is not the run's.
OldRun files_of_run(const fs::path& folder) {
  const auto refuse = [](const fs::path& path, const char* is) {
    throw UsageError(
        fmt::format("{} is {}, which no run makes there; --force has removed nothing: move it away, or give "
                    "another folder",
                    path.string(), is));
  };
  OldRun old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!belongs_to_run(entry.path().filename())) continue;
    if (!is_file(entry.path())) refuse(entry.path(), is_link(entry.path()) ? "a link" : "no regular file");
    old.files.push_back(entry.path());
  }
  const fs::path checkpoints = folder / kCheckpoints;
  const fs::file_status status = fs::symlink_status(checkpoints);
  if (fs::exists(status) && !fs::is_directory(status))
    refuse(checkpoints, fs::is_symlink(status) ? "a link" : "no folder");
  if (fs::exists(status))
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      const bool own = is_checkpoint(entry.path().filename().native());
      if (own && !is_file(entry.path())) refuse(entry.path(), is_link(entry.path()) ? "a link" : "no regular file");
      (own ? old.files : old.foreign).push_back(entry.path());
    }
  add_files_of_ranks(folder, old, refuse);
  // The record last: it is the proof, should this be cut short.
  std::stable_partition(old.files.begin(), old.files.end(),
                        [](const fs::path& file) { return file.filename() != kRecord; });
  return old;
}

void remove_run(const fs::path& folder) {
  const OldRun old = files_of_run(folder);
  std::error_code error;
  for (const fs::path& file : old.files)
    if (!fs::remove(file, error) && error) throw FileError("cannot remove", file, error.value());
  for (const fs::path& file : old.foreign)
    base::err("nsa-train: {} is not of the run that --force removes, and stays\n", file.string());
  fs::remove(folder / kCheckpoints, error);  // when it is empty, as the next ones
  if (!fs::exists(folder / kRanks, error)) return;
  for (const auto& rank : fs::directory_iterator(folder / kRanks))
    if (rank.is_directory()) fs::remove(rank.path(), error);
  fs::remove(folder / kRanks, error);
}

nlohmann::json read_record(const fs::path& file) {
  nlohmann::json record = nlohmann::json::parse(read_text(file), nullptr, /*allow_exceptions=*/false);
  const auto starts = record.is_object() ? record.value("starts", nlohmann::json()) : nlohmann::json();
  if (!record.is_object() || !record.contains("run_id") || !record["run_id"].is_string() || !starts.is_array() ||
      starts.empty())
    throw UsageError(fmt::format("{} is no record of a run; give another folder, or move it away", file.string()));
  return record;
}

// The run that a folder's record proves; nullopt when there is no record, or it is none of a run's.
std::optional<std::string> proven_run(const fs::path& file) {
  if (!is_file(file)) return std::nullopt;
  const auto record = nlohmann::json::parse(read_text(file), nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("run_id") || !record["run_id"].is_string() ||
      !record.contains("schema") || !record["schema"].is_string() ||
      !record["schema"].get_ref<const std::string&>().starts_with(kSchema))
    return std::nullopt;
  return record["run_id"].get<std::string>();
}

// Throws UsageError for a lock that somebody has or that is none, FileError for one that cannot be taken.
void require(const base::FolderLock& lock, const fs::path& folder) {
  const fs::path file = folder / kLock;
  switch (lock.state()) {
    case base::FolderLock::State::held:
      return;
    case base::FolderLock::State::busy:
      throw UsageError(fmt::format("another process trains in {} at this moment: {}", folder.string(), lock.why()));
    case base::FolderLock::State::foreign:
      throw UsageError(lock.why());
    case base::FolderLock::State::unwritable:
      throw FileError("cannot use the run's folder: cannot open", file, lock.error());
    case base::FolderLock::State::unlockable:
      throw FileError("cannot lock", file, lock.error());
  }
}

}  // namespace

std::optional<nlohmann::json> record_in(const fs::path& folder) {
  if (!holds_run(folder)) {
    if (const std::string name = in_the_way(folder); !name.empty())
      throw UsageError(fmt::format("{} holds '{}', which a run would write over: move it away, or give another folder",
                                   folder.string(), name));
    return std::nullopt;
  }
  refuse_what_is_no_file(folder);
  if (!fs::exists(folder / kRecord))
    throw UsageError(fmt::format("{} holds parts of a run and no {}: move them away, or give another folder",
                                 folder.string(), kRecord));
  return read_record(folder / kRecord);
}

TrainingFolder::TrainingFolder(const fs::path& path, Mode mode)
    : path_(fs::absolute(path)), mode_(mode), run_id_(base::new_run_id()) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) throw FileError("cannot make the run's folder", path_, error.value());
  lock_.emplace(path_ / kLock, "run " + run_id_);  // first: what is there may be another's that is just beginning
  require(*lock_, path_);
  if (mode_ == Mode::fresh && holds_run(path_))
    throw UsageError(fmt::format("{} holds a run: --resume goes on with it, --force removes it", path_.string()));
  if (mode_ == Mode::force) {
    if (const auto run = proven_run(path_ / kRecord)) {
      replaces_ = *run;
      (void)files_of_run(path_);
    } else if (const std::string name = in_the_way(path_); !name.empty()) {
      throw UsageError(
          fmt::format("{} holds '{}' and no {} of a run that --force could remove: move it away, or give "
                      "another folder",
                      path_.string(), name, kRecord));
    }
  }
  if (mode_ == Mode::force) return;
  if (auto record = record_in(path_)) {
    record_ = std::move(*record);
    run_id_ = record_["run_id"];
    goes_on_ = true;
  }
}

void TrainingFolder::begin(const nlohmann::json& config, const nlohmann::json& start) {
  if (!replaces_.empty()) remove_run(path_);
  if (!goes_on_) record_ = {{"schema", "nsa-train-run/1"}, {"run_id", run_id_}, {"starts", nlohmann::json::array()}};
  record_["config"] = config;
  record_["starts"].push_back(start);
  base::write_whole(path_ / kRecord, record_.dump(1) + "\n");
}

void TrainingFolder::check() const {
  constexpr const char* kGone = "deleted or moved away";
  std::error_code error;
  if (!fs::exists(path_, error)) throw FileLost(path_, kGone);
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the constructor has taken it
  if (const std::string how = lock_->lost(); !how.empty()) throw FileLost(path_ / kLock, how);
  if (!fs::exists(path_ / kRecord, error)) throw FileLost(path_ / kRecord, kGone);
}

}  // namespace nsa::train
