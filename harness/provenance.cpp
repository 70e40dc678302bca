#include "harness/provenance.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/environment.hpp"
#include "base/fnv1a.hpp"
#include "base/text.hpp"
#include "harness/process.hpp"
#include "harness/source_hash.hpp"

namespace harness {

namespace fs = std::filesystem;

namespace {

constexpr double kGitSeconds = 10;
// Recorded, never acted upon. Those of the program come from Program::provenance.
constexpr const char* kVariables[] = {"PYTORCH_CUDA_ALLOC_CONF",
                                      "PYTORCH_ALLOC_CONF",
                                      "PYTORCH_NO_CUDA_MEMORY_CACHING",
                                      "CUDA_VISIBLE_DEVICES",
                                      "CUDA_LAUNCH_BLOCKING",
                                      "CUDA_MODULE_LOADING",
                                      "CUBLAS_WORKSPACE_CONFIG",
                                      "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
                                      "NVIDIA_TF32_OVERRIDE",
                                      "TORCH_SHOW_DISPATCH_TRACE",
                                      "OMP_NUM_THREADS",
                                      "MKL_NUM_THREADS"};

std::string read_file(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// The value of "key : value" in a file of /proc.
std::string proc_value(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (colon != std::string::npos && begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

Json source(const fs::path& folder) {
  Json json = {{"folder", folder.string()}, {"git_sha", nullptr}, {"dirty", nullptr}};
  if (folder.empty() || !fs::exists(folder / ".git")) return json;
  const auto git = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"git", "-c", "safe.directory=*", "-C", folder.string()});
    return output_of(words, kGitSeconds);
  };
  if (const auto sha = git({"rev-parse", "--verify", "--quiet", "HEAD"})) json["git_sha"] = base::first_line(*sha);
  if (const auto changes = git({"status", "--porcelain"})) json["dirty"] = !changes->empty();
  return json;
}

Json build(const Program& program) {
  std::string now;
  if (!program.source_dir.empty() && fs::is_directory(program.source_dir)) now = source_hash(program.source_dir);
  Json json = {{"build_id", program.build_id}, {"source_hash", nullptr}};
  if (!now.empty()) json["source_hash"] = now;
#if defined(__clang__)
  json["compiler"] = "clang " __clang_version__;
#else
  json["compiler"] = "g++ " __VERSION__;
#endif
  json["type"] = HARNESS_BUILD_TYPE;
  return json;
}

std::string container() {
  if (fs::exists("/run/.containerenv")) return "podman";
  if (fs::exists("/.dockerenv")) return "docker";
  const std::string groups = read_file("/proc/1/cgroup");
  for (const char* kind : {"kubepods", "docker", "lxc", "containerd"})
    if (groups.find(kind) != std::string::npos) return kind;
  return "none";
}

Json host() {
  utsname system{};
  uname(&system);
  return {{"hostname", system.nodename},
          {"kernel", system.release},
          {"cpu", proc_value("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)},
          {"container", container()}};
}

Json environment() {
  Json json = Json::object();
  for (const char* name : kVariables)
    if (const auto value = base::variable(name)) json[name] = *value;
  return json;
}

Json settings_of(const Settings& settings, const CommandLine& line) {
  Json files = Json::array(), values = Json::object();
  for (const fs::path& file : line.config_files) files.push_back({{"path", file.string()}, {"hash", file_hash(file)}});
  for (const auto& [key, value] : settings.values()) values[key] = {{"value", value.text}, {"origin", value.origin}};
  return {{"files", files}, {"values", values}};
}

}  // namespace

std::span<const char* const> recorded_variables() { return kVariables; }

std::string file_hash(const fs::path& file) {
  if (!fs::is_regular_file(file)) return "";
  return fmt::format("{:016x}", base::fnv1a(base::kFnvOffset, read_file(file)));
}

Json provenance(const Program& program, const Settings& settings, const CommandLine& line) {
  Json json = {{"program", {{"name", program.name}, {"version", program.version}}},
               {"source", source(program.source_dir)},
               {"build", build(program)},
               {"host", host()},
               {"environment", environment()},
               {"settings", settings_of(settings, line)}};
  if (program.provenance) json.update(program.provenance(settings));
  return json;
}

}  // namespace harness
