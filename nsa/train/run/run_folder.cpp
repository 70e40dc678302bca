#include "nsa/train/run/run_folder.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include "nsa/train/files.hpp"
#include "nsa/train/run/exit_code.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRecord = "run.json";
constexpr const char* kLock = ".lock";

// What belongs to a run and is removed with it; nothing else in the folder is ever touched. `.HALT` is not in it: it
// may be somebody's order to stop (halt_file.hpp).
bool belongs_to_run(const fs::path& file) {
  const std::string name = file.filename();
  for (const char* own : {kRecord, "checkpoints", "metrics.csv", "validation.csv", "heartbeat.jsonl", "dtypes.txt"})
    for (const std::string_view end :
         {std::string_view(), AtomicFile::kTemporary, std::string_view(".old"), std::string_view(".damaged")})
      if (name == own + std::string(end)) return true;
  return name.starts_with("stacks_") || name.starts_with(".HALT.");
}

bool holds_run(const fs::path& folder) {
  return fs::exists(folder / kRecord) || fs::exists(folder / "checkpoints") || fs::exists(folder / "metrics.csv");
}

nlohmann::json read_record(const fs::path& file) {
  nlohmann::json record = nlohmann::json::parse(read_text(file), nullptr, /*allow_exceptions=*/false);
  const auto starts = record.is_object() ? record.value("starts", nlohmann::json()) : nlohmann::json();
  if (!record.is_object() || !record.contains("run_id") || !record["run_id"].is_string() || !starts.is_array() ||
      starts.empty())
    throw UsageError(
        fmt::format("{} is no record of a run; --force starts anew and removes what is there", file.string()));
  return record;
}

// "" when there is none to be found.
std::string run_id_in(const fs::path& file) {
  if (!fs::is_regular_file(file)) return "";
  const auto record = nlohmann::json::parse(read_text(file), nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains("run_id") && record["run_id"].is_string()
             ? record["run_id"].get<std::string>()
             : "";
}

}  // namespace

std::string new_run_id() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y%m%dT%H%M%SZ}-{:04x}", fmt::gmtime(now), std::random_device{}() & 0xFFFFU);
}

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path file = folder / kLock;
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw FileError("cannot use the run's folder: cannot open", file, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(fd_);
  if (error == EWOULDBLOCK)
    throw UsageError(fmt::format("another process trains in {} at this moment", folder.string()));
  throw FileError("cannot lock", file, error);
}

FolderLock::~FolderLock() { ::close(fd_); }

RunFolder::RunFolder(fs::path path, Mode mode)
    : path_(fs::absolute(std::move(path))), mode_(mode), run_id_(new_run_id()) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) throw FileError("cannot make the run's folder", path_, error.value());
  lock_.emplace(path_);  // first: what is there may be another's that is just beginning
  if (mode_ == Mode::fresh && holds_run(path_))
    throw UsageError(fmt::format("{} holds a run: --resume goes on with it, --force removes it", path_.string()));
  if (mode_ == Mode::force) replaces_ = run_id_in(path_ / kRecord);
  if (mode_ != Mode::resume) return;
  if (!fs::exists(path_ / kRecord)) {
    if (!holds_run(path_)) return;
    throw UsageError(fmt::format("{} holds parts of a run and no {}; --force starts anew and removes them",
                                 path_.string(), kRecord));
  }
  record_ = read_record(path_ / kRecord);
  run_id_ = record_["run_id"];
  goes_on_ = true;
}

void RunFolder::begin(const nlohmann::json& config, const nlohmann::json& start) {
  if (mode_ == Mode::force) {
    for (const auto& entry : fs::directory_iterator(path_)) {
      std::error_code error;
      if (belongs_to_run(entry.path())) fs::remove_all(entry.path(), error);
      if (error) throw FileError("cannot remove", entry.path(), error.value());
    }
  }
  if (!goes_on_) record_ = {{"schema", "nsa-train-run/1"}, {"run_id", run_id_}, {"starts", nlohmann::json::array()}};
  record_["config"] = config;
  record_["starts"].push_back(start);
  AtomicFile file(path_ / kRecord);
  file.write(record_.dump(1) + "\n");
  file.commit();
}

}  // namespace nsa::train
