#include "nsa/train/run/halt_file.hpp"

#include <fmt/format.h>

#include "nsa/train/files.hpp"
#include "nsa/train/run/heartbeat.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kShown = 200;

std::string one_line(std::string text) {
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  for (char& letter : text)
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

HaltFile::HaltFile(const fs::path& folder, std::string run_id, Tell tell)
    : path_(folder / ".HALT"), run_id_(std::move(run_id)), tell_(std::move(tell)) {}

std::optional<HaltFile::Found> HaltFile::look() {
  if (!fs::exists(path_)) return std::nullopt;
  const std::string text = fs::is_regular_file(path_) ? read_text(path_) : "";
  const auto content = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!content.is_object() || !content.contains("run") || !content["run"].is_string())
    return Found{false, one_line(text)};
  if (const auto run = content["run"].get<std::string>(); run != run_id_) {
    move_away(fmt::format("it is of run {}, this is {}", run, run_id_));
    return std::nullopt;
  }
  if (!content.contains("anomaly")) return Found{false, one_line(text)};
  return Found{true,
               fmt::format("{} in step {}{}", content.value("anomaly", "?"), content.value("step", std::int64_t{-1}),
                           content.contains("parameter") ? ", " + one_line(content["parameter"].dump()) : "")};
}

void HaltFile::set_aside() {
  if (fs::exists(path_)) move_away("it was there before this run");
}

void HaltFile::move_away(const std::string& why) {
  const fs::path aside = path_.string() + ".stale";
  std::error_code error;
  fs::rename(path_, aside, error);
  if (error) throw FileError("cannot set aside", path_, error.value());
  tell_(fmt::format("{} is ignored: {}; it lies in {} now", path_.string(), why, aside.filename().string()));
}

void HaltFile::write(nlohmann::json evidence) {
  evidence["run"] = run_id_;
  evidence["time"] = timestamp();
  evidence["what_to_do"] =
      "find the cause, remove this file, start again with --resume: the run goes on before this step";
  AtomicFile file(path_);
  file.write(evidence.dump(1) + "\n");
  file.commit();
}

}  // namespace nsa::train
