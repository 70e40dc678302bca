#include "suites/throughput/gate_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "suites/throughput/settings.hpp"

namespace suites::throughput_cases {

namespace {

constexpr const char* kFloorKey = "throughput.floor_tok_s";
constexpr const char* kModelKey = "throughput.gate_model";

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::filesystem::path file_for(const std::string& gpu, const std::filesystem::path& gates) {
  std::filesystem::path best = gates / "default.yaml";
  std::size_t length = 0;
  for (const auto& entry : std::filesystem::directory_iterator(gates)) {
    const std::string name = lower(entry.path().stem().string());
    if (entry.path().extension() != ".yaml" || name == "default" || name.size() <= length) continue;
    if (lower(gpu).find(name) == std::string::npos) continue;
    best = entry.path();
    length = name.size();
  }
  return best;
}

harness::Settings load(const std::filesystem::path& file) {
  harness::Settings settings(throughput_settings());
  settings.load_file(file);
  if (settings.values().at(kFloorKey).origin == "default")
    throw harness::UsageError(fmt::format("{}: it does not set {}", file.string(), kFloorKey));
  return settings;
}

bool holds_for(const harness::Settings& gate, const std::string& model) {
  const std::string measured_with = gate.text(kModelKey);
  return measured_with.empty() || measured_with == model;
}

}  // namespace

Floor choose_floor(const harness::Settings& settings, const std::string& gpu, const std::string& model,
                   const std::filesystem::path& gates) {
  const std::string& origin = settings.values().at(kFloorKey).origin;
  if (origin != "default" && holds_for(settings, model)) return {settings.real(kFloorKey), origin};

  const std::filesystem::path file = file_for(gpu, gates), fallback = gates / "default.yaml";
  const harness::Settings gate = load(file);
  const std::string whose = gpu.empty() ? "a CPU" : gpu;
  if (holds_for(gate, model)) return {gate.real(kFloorKey), fmt::format("{} (for {})", file.string(), whose)};
  return {load(fallback).real(kFloorKey), fmt::format("{} ({} holds for {} only, this is {})", fallback.string(),
                                                      file.filename().string(), gate.text(kModelKey), model)};
}

}  // namespace suites::throughput_cases
