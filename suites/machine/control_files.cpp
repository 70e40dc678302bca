#include "suites/machine/control_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "suites/codes.hpp"

namespace suites::machine {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kQuotedBytes = 4096;
constexpr const char* kHalt = ".HALT";  // the one that stops training

bool is_control_file(const std::string& name) {
  return name.starts_with("HALT") || name.starts_with(".HALT") || name == ".anomaly_type";
}

std::string head_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(kQuotedBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n\"");
  const std::size_t end = text.find_last_not_of(" \t\r\n\",");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// The value of the first of `keys` that the text holds.
std::string value_in(const std::string& text, std::initializer_list<const char*> keys) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (const char* key : keys) {
    if (json.is_object() && json.contains(key))
      return json[key].is_string() ? json[key].get<std::string>() : json[key].dump();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t colon = line.find(':');
      if (colon != std::string::npos && trimmed(line.substr(0, colon)) == key) return trimmed(line.substr(colon + 1));
    }
  }
  return "";
}

std::string describe(const ControlFile& file, const std::string& run_id) {
  std::string text = file.path.filename().string() + " lies in " + file.path.parent_path().string();
  if (file.content.empty()) return text + " and is empty: it names no run";
  text += file.run.empty() ? " and names no run" : " and belongs to run " + file.run;
  if (!run_id.empty()) text += " (this is " + run_id + ")";
  if (!file.anomaly.empty()) text += ", which stopped itself: " + file.anomaly;
  if (!file.step.empty()) text += " at step " + file.step;
  return fmt::format("{}; it says: {}", text, trimmed(file.content));
}

}  // namespace

std::vector<ControlFile> find_control_files(const fs::path& folder) {
  std::vector<ControlFile> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!is_control_file(entry.path().filename().string())) continue;
    ControlFile file;
    file.path = entry.path();
    if (entry.is_regular_file(ignored)) file.content = head_of(entry.path());
    file.run = value_in(file.content, {"run", "run_id"});
    file.anomaly = value_in(file.content, {"anomaly", "anomaly_type", "type"});
    file.step = value_in(file.content, {"step"});
    if (file.path.filename() == ".anomaly_type" && file.anomaly.empty()) file.anomaly = trimmed(file.content);
    found.push_back(std::move(file));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return found;
}

Inspection judge_control_files(const fs::path& folder, const std::string& subject, const std::string& run_id) {
  Inspection result;
  result.subject = subject + ".control_files";
  result.seen = Json::array();
  for (const ControlFile& file : find_control_files(folder)) {
    const std::string name = file.path.filename().string();
    result.seen.push_back(name);
    if (name != kHalt) continue;
    result.judgements.push_back({subject + "." + name,
                                 false,
                                 describe(file, run_id),
                                 codes::kStaleHalt,
                                 {{"file", file.path.string()},
                                  {"content", file.content},
                                  {"run_of_the_file", file.run},
                                  {"anomaly", file.anomaly},
                                  {"run", run_id}}});
  }
  result.summary = fmt::format("control files in {}: {}", folder.string(), result.seen.size());
  return result;
}

}  // namespace suites::machine
