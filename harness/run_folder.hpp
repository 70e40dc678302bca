// The folder of a run: where it lies, when it may be used, what of an old run is removed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace harness {

// "20261121T013100Z-8c1f": UTC and four random hex digits.
[[nodiscard]] std::string new_run_id();

class RunFolder {
 public:
  // `out` as the user gave it; absent: out/<run id> under the current folder. Throws UsageError when the place cannot
  // be used: not a folder, not empty and not an old run, an old run without `force`, not writable. Creates nothing.
  RunFolder(const std::optional<std::filesystem::path>& out, const std::string& run_id, bool force);

  // Makes the folder with logs/ in it and removes the files of an old run, never anything else. A default folder also
  // gets the link out/latest. Throws UsageError with path and reason.
  void create() const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }  // absolute

 private:
  std::filesystem::path path_;
  bool by_default_, force_;
};

}  // namespace harness
