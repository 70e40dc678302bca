// Control files of an earlier run: they stop a training run at its first step, and look like a fault of the model.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

namespace {

constexpr std::size_t kQuotedBytes = 4096;

bool is_control_file(const std::string& name) {
  return name.starts_with("HALT") || name.starts_with(".HALT") || name == ".anomaly_type";
}

std::string head_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(kQuotedBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

}  // namespace

void halt_files(Context& context) {
  Json looked_at = Json::array();
  for (const auto& entry : std::filesystem::directory_iterator(context.run_folder())) {
    const std::string name = entry.path().filename().string();
    if (!is_control_file(name)) continue;
    looked_at.push_back(name);
    const std::string content = entry.is_regular_file() ? head_of(entry.path()) : "";
    const bool ours = content.find(context.run_id()) != std::string::npos;
    context.expect(
        "run_folder." + name, ours,
        fmt::format("{} lies in the run's folder and {}: {}", name,
                    content.empty() ? "names no run" : "is not of this run", content.empty() ? "it is empty" : content),
        codes::kStaleHalt, {{"file", entry.path().string()}, {"content", content}, {"run", context.run_id()}});
  }
  context.fact("run_folder.control_files", looked_at);
}

}  // namespace suites::preflight_checks
