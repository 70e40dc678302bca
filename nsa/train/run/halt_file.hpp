// The file that stops a run: `.HALT` in its folder. The run writes it itself after an anomaly, bound to its run id; an
// operator makes one with anything in it, or nothing (`touch .HALT`). One that names another run does not count: it is
// set aside as `.HALT.stale`, with a message.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace nsa::train {

class HaltFile {
 public:
  using Tell = std::function<void(const std::string&)>;

  HaltFile(const std::filesystem::path& folder, std::string run_id, Tell tell);

  struct Found {
    bool own = false;  // written by this run after an anomaly
    std::string text;  // one line: the anomaly and its step, or what the operator wrote
  };
  // Before a run goes on, and while it trains.
  [[nodiscard]] std::optional<Found> look();
  // Before a new run: whatever lies there was not meant for it.
  void set_aside();
  // `evidence`: "step", "anomaly", "parameter", ... The run id and the time are added. Throws FileError.
  void write(nlohmann::json evidence);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void move_away(const std::string& why);

  std::filesystem::path path_;
  std::string run_id_;
  Tell tell_;
};

}  // namespace nsa::train
