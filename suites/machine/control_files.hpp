// Control files in a run's folder: HALT files and the anomaly type that an earlier run left. They stop a training run
// at its first step and look like a fault of the model.
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

// Every file must belong to `run_id`; nothing does when it is empty. `subject` names the folder ("run_folder").
[[nodiscard]] Inspection judge_control_files(const std::filesystem::path& folder, const std::string& subject,
                                             const std::string& run_id);

}  // namespace suites::machine
