// Checkpoint files: a TrainState in the safetensors format (tensor_file.hpp), so that any tool reads the weights. The
// header's __metadata__ holds "format" and the state's "facts" as JSON text. The last tensor, "checksum" (U8 [8]), is
// the Hash64 of every byte before it: a torn or changed file is noticed.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "nsa/train/state.hpp"

namespace nsa::train {

// Not a checkpoint, or not as it was written: path and reason.
class CheckpointInvalid : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What the metadata of such a file say under "format".
inline constexpr std::string_view kCheckpointFormat = "nsa-train/1";

// Called after every tensor, for those who watch for progress.
using Pulse = std::function<void()>;

// Whole or not at all (files.hpp); throws FileError.
void write_checkpoint(const std::filesystem::path& file, const TrainState& state, const Pulse& pulse = {});
// Throws CheckpointInvalid, and FileError for a file that cannot be opened.
[[nodiscard]] TrainState read_checkpoint(const std::filesystem::path& file, const Pulse& pulse = {});

// The checkpoints of a run: one folder, "step_00000020.safetensors" each. Files with other names are somebody else's:
// neither read nor removed.
class CheckpointStore {
 public:
  static constexpr std::string_view kSuffix = ".safetensors";

  // `keep`: how many newest ones stay, at least 1. Makes the folder on the first save.
  CheckpointStore(std::filesystem::path folder, std::int64_t keep);
  // The step of a name that save() gives; nullopt for every other name.
  [[nodiscard]] static std::optional<std::int64_t> step_of(std::string_view name);

  // Writes the state, then removes what is older than the `keep` newest. Throws FileError; what was there
  // is still there then.
  std::filesystem::path save(const TrainState& state, const Pulse& pulse = {});

  // From here on nothing is removed.
  void keep_all();

  struct Loaded {
    std::filesystem::path file;
    TrainState state;
  };
  // The newest checkpoint that is whole. A broken one is told to `tell` and set aside as "<name>.broken", so that it
  // is neither tried nor counted again, and so is one that is of another step than its name says, and a folder with a
  // checkpoint's name; what an interrupted save left is removed.
  [[nodiscard]] std::optional<Loaded> newest(const std::function<void(const std::string&)>& tell,
                                             const Pulse& pulse = {});

 private:
  [[nodiscard]] std::vector<std::filesystem::path> files() const;  // newest first

  std::filesystem::path folder_;
  std::int64_t keep_;
};

}  // namespace nsa::train
