#include "harness/launch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <vector>

#include "harness/settings.hpp"

namespace harness {

namespace {

constexpr std::int64_t kMostProcesses = 10'000'000;

std::optional<std::int64_t> natural(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty() || value < 0) return std::nullopt;
  return value;
}

// Reads variables and remembers what is wrong with them.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  [[nodiscard]] bool has(const char* name) const { return environment_.contains(name); }
  [[nodiscard]] std::string text(const char* name) const { return has(name) ? environment_.at(name) : ""; }
  void wrong(const char* name, const std::string& allowed) {
    problems_.push_back(fmt::format("{} is '{}', allowed is {}", name, text(name), allowed));
  }
  void lacks(const char* name, const char* without) {
    problems_.push_back(
        fmt::format("{} is '{}', and {} is not set: a launcher sets both; unset {} for a single process", name,
                    text(name), without, name));
  }
  // Nothing where it is not set, or wrong.
  std::optional<std::int64_t> number(const char* name, std::int64_t least, std::int64_t below, const char* what) {
    if (!has(name)) return std::nullopt;
    const auto value = natural(text(name));
    if (value && *value >= least && *value < below) return value;
    wrong(name, below >= kMostProcesses ? fmt::format("an integer of at least {} ({})", least, what)
                                        : fmt::format("an integer from {} to {} ({})", least, below - 1, what));
    return std::nullopt;
  }
  void refuse() const {
    if (!problems_.empty()) throw UsageError(fmt::format("{}", fmt::join(problems_, "\n")));
  }

 private:
  const Environment& environment_;
  std::vector<std::string> problems_;
};

// A host's name becomes the name of a folder.
std::string file_name(std::string host) {
  for (char& c : host) {
    const bool fits =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
    if (!fits) c = '_';
  }
  return host.empty() || host.front() == '.' ? "host" + host : host;
}

// Rank and size by these variables. A size that is wrong leaves no bound for the rank.
void read_ranks(Reader& reader, Launch& launch, const char* rank, const char* size) {
  launch.size = reader.number(size, 1, kMostProcesses, "how many processes").value_or(kMostProcesses);
  launch.rank = reader.number(rank, 0, launch.size, "the process's number, below their number").value_or(0);
}

void read_local(Reader& reader, Launch& launch, const char* rank, const std::optional<std::int64_t>& size) {
  launch.local_size = size;
  launch.local_rank = reader.number(rank, 0, size.value_or(launch.size), "its number among those of this host");
}

std::optional<Launch> by_torchrun(Reader& reader) {
  if (!reader.has("RANK") && !reader.has("WORLD_SIZE")) return std::nullopt;
  if (!reader.has("WORLD_SIZE")) reader.lacks("RANK", "WORLD_SIZE");
  if (!reader.has("RANK")) reader.lacks("WORLD_SIZE", "RANK");
  Launch launch;
  launch.launcher = "torchrun";
  read_ranks(reader, launch, "RANK", "WORLD_SIZE");
  read_local(reader, launch, "LOCAL_RANK",
             reader.number("LOCAL_WORLD_SIZE", 1, launch.size + 1, "how many processes on this host"));
  launch.job = reader.text("TORCHELASTIC_RUN_ID");
  if (launch.job.empty() || launch.job == "none") launch.job = reader.text("SLURM_JOB_ID");
  return launch;
}

// "2(x3),1": of each node in turn.
std::optional<std::int64_t> tasks_of_node(const std::string& list, std::int64_t node) {
  std::size_t at = 0;
  while (at <= list.size()) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string part = list.substr(at, end - at);
    const std::size_t times = part.find("(x");
    const auto tasks = natural(part.substr(0, times));
    const auto nodes = times == std::string::npos
                           ? std::optional<std::int64_t>(1)
                           : natural(part.substr(times + 2, part.size() - std::min(part.size(), times + 3)));
    if (!tasks || !nodes) return std::nullopt;
    if (node < *nodes) return tasks;
    node -= *nodes;
    at = end + 1;
  }
  return std::nullopt;
}

// A script of sbatch that was not started by srun has SLURM_PROCID=0 too, with no number of tasks unless one was asked.
std::optional<Launch> by_slurm(Reader& reader) {
  if (!reader.has("SLURM_PROCID")) return std::nullopt;
  const char* size = reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  if (!reader.has(size)) {
    if (reader.text("SLURM_PROCID") != "0") reader.lacks("SLURM_PROCID", "SLURM_NTASKS");
    return std::nullopt;
  }
  Launch launch;
  launch.launcher = "slurm";
  read_ranks(reader, launch, "SLURM_PROCID", size);
  const auto node = reader.number("SLURM_NODEID", 0, kMostProcesses, "the node's number");
  const std::string tasks = reader.text("SLURM_STEP_TASKS_PER_NODE");
  read_local(reader, launch, "SLURM_LOCALID",
             node && !tasks.empty() ? tasks_of_node(tasks, *node) : std::optional<std::int64_t>());
  launch.job = reader.text("SLURM_JOB_ID");
  if (reader.has("SLURM_STEP_ID")) launch.job += "." + reader.text("SLURM_STEP_ID");
  launch.host = reader.text("SLURMD_NODENAME");
  return launch;
}

// GPUs whose devices this process can see, without a word to CUDA.
std::int64_t gpus_here() {
  std::int64_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && natural(name.substr(6))) ++count;
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

std::optional<Launch> launch_of(const Environment& environment, const std::string& hostname) {
  Reader reader(environment);
  std::optional<Launch> launch = by_torchrun(reader);
  if (!launch) launch = by_slurm(reader);
  reader.refuse();
  if (!launch || launch->size == 1) return std::nullopt;
  launch->host = file_name(launch->host.empty() ? hostname : launch->host);
  return launch;
}

std::optional<Launch> own_launch() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  utsname system{};
  uname(&system);
  return launch_of(environment, system.nodename);
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
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const auto gpu = gpu_of(launch, visible == nullptr ? std::nullopt : std::optional<std::string>(visible), gpus_here());
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
