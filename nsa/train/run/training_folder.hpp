// The folder of a training run (that of a validation is harness/run_folder.hpp; both are locked by
// base/folder_lock.hpp):
//
//   run.json           who it is: run id, configuration, and what each start found (build, torch, device, flags)
//   checkpoints/       step_NNNNNNNN.safetensors (train/checkpoint.hpp)
//   metrics.csv        a row every log_every steps      validation.csv   a row every eval_every steps
//   heartbeat.jsonl    what happened when               dtypes.txt       the parameters and their types
//   stacks_*.txt       what the threads did when the watchdog spoke
//   .HALT              stops the run (halt_file.hpp)    .lock            held while a process trains here
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/folder_lock.hpp"

namespace nsa::train {

// The run.json of the run that this folder holds; nullopt when it holds none. Throws UsageError where no run could
// begin or go on: something else has the name of one of its files, or its record is gone or none.
[[nodiscard]] std::optional<nlohmann::json> record_in(const std::filesystem::path& folder);

class TrainingFolder {
 public:
  enum class Mode {
    fresh,   // refused when the folder holds a run
    resume,  // the run that is there, or a new one
    force,   // a new one in place of the run that is there, which a run.json of a run must prove
  };
  // Makes the folder and takes its lock, and changes nothing else. Throws UsageError for a run that is in the way and
  // for a folder where another process trains, FileError for one that cannot be used.
  TrainingFolder(const std::filesystem::path& path, Mode mode);
  // From here on the run exists: removes the files of the one before (force), by their names, and writes run.json with
  // `start` as its newest start. Others among the checkpoints stay, and are told.
  void begin(const nlohmann::json& config, const nlohmann::json& start);
  // From begin() on, before anything is written: throws FileLost when the folder, its lock or its record was taken
  // away. Another run may have begun there since.
  void check() const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::string& run_id() const { return run_id_; }
  [[nodiscard]] const std::string& replaces() const { return replaces_; }  // the run that --force removes, "" for none
  [[nodiscard]] bool goes_on() const { return goes_on_; }                  // the run was there before
  [[nodiscard]] const nlohmann::json& last_start() const { return record_.at("starts").back(); }
  [[nodiscard]] std::filesystem::path file(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
  Mode mode_;
  std::string run_id_, replaces_;
  nlohmann::json record_;  // run.json
  bool goes_on_ = false;
  std::optional<base::FolderLock> lock_;  // no other process has the folder while this one lives, however it ends
};

}  // namespace nsa::train
