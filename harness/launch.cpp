#include "harness/launch.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/environment.hpp"
#include "base/launch.hpp"
#include "harness/settings.hpp"

namespace harness {

namespace {

// A host's name becomes the name of a folder.
std::string file_name(std::string host) {
  for (char& c : host) {
    const bool fits =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
    if (!fits) c = '_';
  }
  return host.empty() || host.front() == '.' ? "host" + host : host;
}

// GPUs whose devices this process can see, without a word to CUDA.
std::int64_t gpus_here() {
  std::int64_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos)
      ++count;
  }
  return count;
}

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  std::size_t at = 0;
  for (std::size_t end; (end = list.find(',', at)) != std::string::npos; at = end + 1)
    entries.push_back(list.substr(at, end - at));
  entries.push_back(list.substr(at));
  return entries;
}

}  // namespace

std::string Launch::name() const { return local_size && *local_size == 1 ? host : fmt::format("{}.{}", host, rank); }

std::optional<Launch> launch_of(const base::Environment& environment, const std::string& hostname) {
  try {
    const auto told = base::launch_in(environment);
    if (!told || told->size == 1) return std::nullopt;
    Launch launch;
    launch.launcher = told->launcher == base::Launch::Launcher::torchrun ? "torchrun" : "slurm";
    launch.job = told->job;
    launch.host = file_name(told->host.empty() ? hostname : told->host);
    launch.rank = told->rank;
    launch.size = told->size;
    launch.local_rank = told->local_rank;
    launch.local_size = told->local_size;
    return launch;
  } catch (const base::EnvironmentInvalid& invalid) {
    throw UsageError(invalid.what());
  }
}

std::optional<Launch> own_launch() {
  utsname system{};
  uname(&system);
  return launch_of(base::environment(), system.nodename);
}

std::optional<std::string> gpu_of(const Launch& launch, const std::optional<std::string>& visible,
                                  std::int64_t gpus_here) {
  if (!launch.local_rank || launch.local_size.value_or(2) == 1) return std::nullopt;
  std::vector<std::string> entries;
  if (visible) {
    entries = entries_of(*visible);
    if (entries.size() == 1) return std::nullopt;
  } else {
    if (gpus_here == 0) return std::nullopt;
    for (std::int64_t i = 0; i < gpus_here; ++i) entries.push_back(std::to_string(i));
  }
  if (*launch.local_rank < static_cast<std::int64_t>(entries.size()))
    return entries[static_cast<std::size_t>(*launch.local_rank)];
  throw UsageError(fmt::format(
      "process {} of this host (the first is 0) has no GPU of its own: {}; start at most {} a host", *launch.local_rank,
      visible ? fmt::format("CUDA_VISIBLE_DEVICES is '{}'", *visible) : fmt::format("there are {}", gpus_here),
      entries.size()));
}

std::string take_own_gpu(const Launch& launch) {
  const auto gpu = gpu_of(launch, base::variable("CUDA_VISIBLE_DEVICES"), gpus_here());
  if (gpu) setenv("CUDA_VISIBLE_DEVICES", gpu->c_str(), 1);
  return gpu.value_or("");
}

reports::Json to_json(const Launch& launch, const std::string& gpu) {
  const auto or_null = [](const std::optional<std::int64_t>& value) {
    return value ? reports::Json(*value) : reports::Json();
  };
  reports::Json json = {{"launcher", launch.launcher},
                        {"job", launch.job},
                        {"rank", launch.rank},
                        {"size", launch.size},
                        {"local_rank", or_null(launch.local_rank)},
                        {"local_size", or_null(launch.local_size)},
                        {"name", launch.name()}};
  if (!gpu.empty()) json["gpu"] = gpu;
  return json;
}

}  // namespace harness
