// The folder of a validation run: where it lies, when it may be used, what of an old run is removed, who has it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/folder_lock.hpp"

namespace harness {

class RunFolder {
 public:
  // Its lock: a run holds it from its first file to its last, `report` while it writes.
  static constexpr const char* kLock = ".run.lock";

  // `out` as the user gave it; absent: out/<run id> under the current folder. Throws UsageError when the place cannot
  // be used: not a folder, not empty and not an old run, an old run without `force`, a run that is going on there, not
  // writable; InfrastructureError when there is no space. Creates nothing.
  RunFolder(const std::optional<std::filesystem::path>& out, const std::string& run_id, bool force);

  // Makes the folder, takes its lock for as long as this object lives, looks again at what is there, removes the files
  // of an old run, never anything else, and makes logs/. A default folder also gets the link out/latest. Throws as
  // above. From here on path() is the folder itself, whatever becomes of links that led there.
  //
  // An old run is what its journal proves: the first line of events.jsonl, a regular file, is a run_begin of this
  // program's, of any version. (A run that was killed before that line leaves a folder with nothing else in it.) Its
  // files are known by name, those in suites/, artifacts/ and bundles/ from its plan. Foreign ones there stay, and are
  // told; a link or a folder with the name of such a file is refused before anything is removed.
  void create();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }  // absolute

 private:
  void refuse_unusable() const;

  std::filesystem::path path_;
  std::string run_id_;
  bool by_default_, force_;
  std::optional<base::FolderLock> lock_;
};

}  // namespace harness
