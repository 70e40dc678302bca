// The file that stops a run: `.HALT` in its folder, whoever wrote it. The run writes it itself after an anomaly, bound
// to its run id; an operator makes one with anything in it, or nothing (`touch .HALT`). One rule for all of them: while
// it lies there no run in this folder begins or goes on, and none moves or deletes it. nsa-validate's finding NSA-E005
// says the same.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace nsa::train {

class HaltFile {
 public:
  HaltFile(const std::filesystem::path& folder, std::string run_id);

  struct Found {
    bool own = false;  // written by this run after an anomaly
    std::string run;   // the run that it names, "" when it names none
    std::string text;  // one line: the anomaly and its step, or what the operator wrote
  };
  // Before a run begins or goes on, and while it trains. A file that cannot be read counts as well.
  [[nodiscard]] std::optional<Found> look() const;
  // Of a run that is removed with all that it left (--force): its own file goes too, no other one.
  void remove_with(const std::string& run);
  // `evidence`: "step", "anomaly", "parameter", ... The run id and the time are added. Throws FileError.
  void write(nlohmann::json evidence);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::string run_id_;
};

}  // namespace nsa::train
