// The folder of a verb that runs this program many times, and its commands as they are shown to the reader.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace suites::selftest {

inline constexpr const char* kLog = ".log";  // of a run's output, beside its folder

struct FolderWish {
  std::optional<std::string> out;                     // else out/<run id>
  bool force = false;                                 // remove what an earlier one left there
  std::string what;                                   // "self-test": for messages
  std::function<bool(const std::string& name)> ours;  // of what lies there, with neither .log nor .tmp at its end
};
// Made, and empty. Throws harness::UsageError for a name that is no empty folder, harness::InfrastructureError.
[[nodiscard]] std::filesystem::path make_folder(const FolderWish& wish, const std::string& run_id);

// As words for a shell: those that it would read otherwise in quotes.
[[nodiscard]] std::string shell(const std::vector<std::string>& words);

}  // namespace suites::selftest
