#include "nsa/train/run/halt_file.hpp"

#include <fmt/format.h>

#include "base/files.hpp"
#include "base/stamp.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/run/heartbeat.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kShown = 200;
constexpr std::size_t kMostBytes = std::size_t{1}
                                   << 16;  // a run looks at every step: of a larger one the beginning counts

std::string one_line(std::string text) {
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  for (char& letter : text)
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string content_of(const fs::path& file) {
  try {
    return base::read_head(file, kMostBytes);
  } catch (const std::exception&) {  // it is there: a stop request that cannot be read is one
    return "";
  }
}

}  // namespace

HaltFile::HaltFile(const fs::path& folder, std::string run_id) : path_(folder / ".HALT"), run_id_(std::move(run_id)) {}

std::optional<HaltFile::Found> HaltFile::look() const {
  if (!fs::exists(fs::symlink_status(path_))) return std::nullopt;
  const std::string text = content_of(path_);
  const auto content = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Found found{false, "", one_line(text)};
  if (!content.is_object()) return found;
  if (content.contains("run") && content["run"].is_string()) found.run = content["run"];
  if (!content.contains("anomaly") || !content["anomaly"].is_string()) return found;
  found.own = found.run == run_id_;
  const auto step = content.find("step");
  const auto parameter = content.find("parameter");
  found.text =
      fmt::format("{} in step {}{}", one_line(content["anomaly"]), step != content.end() ? one_line(step->dump()) : "?",
                  parameter != content.end() ? ", " + one_line(parameter->dump()) : "");
  return found;
}

void HaltFile::remove_with(const std::string& run) {
  const auto found = look();
  if (!found || run.empty() || found->run != run) return;
  std::error_code error;
  if (!fs::remove(path_, error) && error) throw FileError("cannot remove", path_, error.value());
}

void HaltFile::write(nlohmann::json evidence) {
  evidence["run"] = run_id_;
  evidence["time"] = base::timestamp();
  if (!evidence.contains("what_to_do"))
    evidence["what_to_do"] =
        "find the cause, remove this file, start again with --resume: the run goes on before this step";
  base::write_whole(path_, evidence.dump(1) + "\n");
}

}  // namespace nsa::train
