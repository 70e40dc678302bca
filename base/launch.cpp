#include "base/launch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/parse_number.hpp"

namespace base {

namespace {

void lacks(Variables& variables, const char* name, const char* without) {
  variables.mistake(fmt::format("{} is '{}', and {} is not set: a launcher sets both; unset {} for a single process",
                                name, variables.text(name), without, name));
}

// The first of those that srun, and nothing else, sets; null: none.
const char* variable_of_a_step(const Variables& variables) {
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"})
    if (variables.has(name)) return name;
  return nullptr;
}

// Neither a task of srun nor what lacks a part of one. A script of sbatch has the number 0.
bool without_srun(const Variables& variables) {
  return variable_of_a_step(variables) == nullptr &&
         (!variables.has("SLURM_PROCID") || variables.text("SLURM_PROCID") == "0");
}

// A size that is wrong leaves no bound for the rank.
void read_ranks(Variables& variables, Launch& launch, const char* rank, const char* size) {
  launch.size = variables.number(size, 1, kMostProcesses, "how many processes").value_or(kMostProcesses);
  launch.rank = variables.number(rank, 0, launch.size - 1, "the process's number, below their number").value_or(0);
}

void read_local(Variables& variables, Launch& launch, const char* rank, const std::optional<std::int64_t>& size) {
  launch.local_size = size;
  launch.local_rank = variables.number(rank, 0, size.value_or(launch.size) - 1, "its number among those of this host");
}

Launch by_torchrun(Variables& variables) {
  if (!variables.has("WORLD_SIZE")) lacks(variables, "RANK", "WORLD_SIZE");
  if (!variables.has("RANK")) lacks(variables, "WORLD_SIZE", "RANK");
  Launch launch;
  read_ranks(variables, launch, "RANK", "WORLD_SIZE");
  read_local(variables, launch, "LOCAL_RANK",
             variables.number("LOCAL_WORLD_SIZE", 1, launch.size, "how many processes on this host"));
  launch.job = variables.text("TORCHELASTIC_RUN_ID");
  if (launch.job.empty() || launch.job == "none") launch.job = variables.text("SLURM_JOB_ID");
  return launch;
}

std::optional<std::int64_t> natural(const std::string& text) {
  const auto value = parse_number<std::int64_t>(text);
  return value && *value >= 0 ? value : std::nullopt;
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

std::optional<Launch> by_slurm(Variables& variables) {
  const char* size = variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const char* step = variable_of_a_step(variables);
  if (!variables.has("SLURM_PROCID")) {
    lacks(variables, step, "SLURM_PROCID");
    return std::nullopt;
  }
  if (!variables.has(size)) {
    lacks(variables, "SLURM_PROCID", "SLURM_NTASKS");
    return std::nullopt;
  }
  if (step == nullptr) lacks(variables, "SLURM_PROCID", "SLURM_STEP_ID");
  Launch launch;
  launch.launcher = Launch::Launcher::slurm;
  read_ranks(variables, launch, "SLURM_PROCID", size);
  if (launch.size == 1 && variables.mistakes().empty()) return std::nullopt;
  for (const char* needed : {"SLURM_JOB_ID", "SLURM_LOCALID"})
    if (!variables.has(needed)) lacks(variables, "SLURM_PROCID", needed);
  const auto node = variables.number("SLURM_NODEID", 0, kMostProcesses, "the node's number");
  const std::string tasks = variables.text("SLURM_STEP_TASKS_PER_NODE");
  read_local(variables, launch, "SLURM_LOCALID",
             node && !tasks.empty() ? tasks_of_node(tasks, *node) : std::optional<std::int64_t>());
  (void)variables.number("SLURM_JOB_ID", 0, kMostSlurmId, "the job's number");
  launch.job = variables.text("SLURM_JOB_ID");
  if (variables.has("SLURM_STEP_ID")) launch.job += "." + variables.text("SLURM_STEP_ID");
  launch.host = variables.text("SLURMD_NODENAME");
  return launch;
}

}  // namespace

EnvironmentInvalid::EnvironmentInvalid(std::vector<std::string> all)
    : std::invalid_argument(fmt::format("{} {} in the environment:\n{}", all.size(),
                                        all.size() == 1 ? "mistake" : "mistakes", fmt::join(all, "\n"))),
      mistakes(std::move(all)) {}

std::optional<Launch> read_launch(Variables& variables) {
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return by_torchrun(variables);
  if (without_srun(variables)) return std::nullopt;
  return by_slurm(variables);
}

std::optional<Launch> launch_in(const Environment& environment) {
  Variables variables(environment);
  auto launch = read_launch(variables);
  if (!variables.mistakes().empty()) throw EnvironmentInvalid(variables.mistakes());
  return launch;
}

std::string alone_in_allocation(const Environment& environment) {
  const Variables variables(environment);
  const std::string tasks = variables.text("SLURM_NTASKS");
  const bool by_torchrun = variables.has("RANK") || variables.has("WORLD_SIZE");
  if (by_torchrun || !without_srun(variables) || tasks.empty() || tasks == "1") return "";
  return fmt::format(
      "SLURM_NTASKS is '{}', and SLURM_STEP_ID is not set: srun did not start this process, and it runs alone; "
      "put srun in front of the command to start all tasks",
      tasks);
}

}  // namespace base
