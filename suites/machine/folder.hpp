// A folder that a run will write to: can it be written, and is there room?
#pragma once

#include <cstdint>
#include <filesystem>

#include "suites/machine/inspection.hpp"

namespace suites::machine {

struct FolderState {
  std::filesystem::path path;     // as asked for
  std::filesystem::path nearest;  // itself, or the nearest folder above it that exists
  std::string not_writable;       // the reason; "" when a file could be written, synchronised and removed in `nearest`
  std::uintmax_t free_bytes = 0, total_bytes = 0;  // of its file system, for an ordinary user
};
// Writes a small file of its own into the folder and removes it again.
[[nodiscard]] FolderState look_at_folder(const std::filesystem::path& path);

// `subject` names the folder's purpose ("run_folder"), `needed_for` what the bytes are for.
struct FolderNeed {
  std::string subject;
  std::uintmax_t bytes = 0;
  std::string needed_for;
};
[[nodiscard]] Inspection judge_folder(const FolderState& state, const FolderNeed& need);

}  // namespace suites::machine
