// Control files in a run's folder. A file named `.HALT` stops training, whoever wrote it and whenever: nsa-train does
// not begin or go on while it lies there (nsa/train/run/halt_file.hpp). Other names in use for the same thing (`HALT*`,
// `.HALT.stale`, `.anomaly_type`) stop nothing; they are listed, because they tell what an earlier run ended with.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "suites/machine/inspection.hpp"

namespace suites::machine {

struct ControlFile {
  std::filesystem::path path;
  std::string content;  // its head
  std::string run;      // that it says it belongs to, "" when it names none
  std::string anomaly;  // "nan_loss", "" when it names none
  std::string step;     // likewise
};
// `HALT*`, `.HALT*` and `.anomaly_type` in the folder; none when there is no folder. What they say is found in the two
// forms in use: lines "key: value", and one JSON object.
[[nodiscard]] std::vector<ControlFile> find_control_files(const std::filesystem::path& folder);

// There must be no `.HALT`. `subject` names the folder ("run_folder"); `run_id` is this run's, for the message, or "".
[[nodiscard]] Inspection judge_control_files(const std::filesystem::path& folder, const std::string& subject,
                                             const std::string& run_id);

}  // namespace suites::machine
